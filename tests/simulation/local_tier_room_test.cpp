#include "tests/simulation/local_tier_job.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/manifest.hpp"

namespace troupe::actors {
namespace {

TEST_F(LocalTierJobs, SaveAgainOnSmallDisksAfterMidSaveDeaths) {
  for (const char* state : {"copying", "copied", "receiving", "held"}) {
    for (int rank = 0; rank < kWorld; ++rank) replace(rank);
    auto options = local_job(core::Strategy::zero1, kSteps);
    options.session.local.cliques = pairs();
    save(options, 2);
    for (const auto& node : nodes_) {
      SimulatedStorageOptions full;
      full.capacity_bytes = node->used_bytes() * 22 / 10;
      node->set_options(full);
    }
    auto simulated = simulation();
    SimulatedFault death;
    death.rank = {3};
    death.role = messages::Role::replica_keeper;
    death.state = state;
    simulated.faults = {death};
    const auto killed = simulate_tiny(simulated, options);
    ASSERT_EQ(violations_of(killed.report), "") << state;
    ASSERT_FALSE(killed.report.results[3]) << state;

    const auto outcome = run(options);

    for (const auto& rank : outcome.ranks) {
      ASSERT_TRUE(rank.restored && rank.restored->is_local) << state;
      EXPECT_EQ(rank.state_hash, uninterrupted_hash()) << state;
      ASSERT_FALSE(rank.local_saves.empty()) << state;
      for (const auto& save : rank.local_saves)
        EXPECT_TRUE(save.committed) << state << ": " << save.committed.error().message;
    }
    for (int rank = 0; rank < kWorld; ++rank) EXPECT_EQ(text_of_held(rank).substr(0, 2), "6:") << state;
  }
}

TEST_F(LocalTierJobs, KeepOlderSavesWhileTheRestoredOneLacksCopies) {
  auto options = local_job(core::Strategy::zero1, 3);
  options.session.local.cliques = pairs();
  options.session.local.keep = 2;
  save(options, 3);
  options.session.local.keep = 1;
  hide(1, 0, core::kManifestName);
  SimulatedStorageOptions full;
  full.capacity_bytes = 1;
  nodes_[1]->set_options(full);

  run(options);  // restores, and has no step left to make
  const auto before = text_of_held(0);
  nodes_[1]->set_options({});
  run(options);

  EXPECT_EQ(before, "3: 0 1, 2: 0 1");
  for (int rank = 0; rank < kWorld; ++rank)
    EXPECT_EQ(text_of_held(rank), fmt::format("3: {} {}", rank / 2 * 2, rank / 2 * 2 + 1));
}

// Covers save-26.
TEST_F(TwoTiers, CheckpointDropsSavesNewerThanTheNewestWhole) {
  train_to(3);
  const core::CopyName partial{{5}, 0xabc};
  for (const auto& node : nodes_) {
    ASSERT_TRUE(node->make_directory(directory_of(partial)));
    ASSERT_TRUE(node->make_directory(path_of(partial, {0})));
  }
  auto options = job();
  options.local_every = 0;
  options.steps = options.save_every = 4;
  options.restore = false;
  run_with_disk(options);  // a checkpoint after step 4, and no local save
  options.restore = true;

  const auto outcome = run_with_disk(options);

  EXPECT_FALSE(outcome.ranks[0].restored->is_local);
  EXPECT_EQ(outcome.ranks[0].restored->step, core::Step{4});
  for (const auto& node : nodes_) {
    const auto saves = *list_saves(*node);
    ASSERT_EQ(saves.size(), 1u);
    EXPECT_EQ(saves[0].step, core::StepCount{3});
  }
}

}  // namespace
}  // namespace troupe::actors
