#include "tests/simulation/local_tier_job.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/manifest.hpp"

namespace troupe::actors {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Covers local-3.
TEST_F(LocalTierJobs, GoOnWithTheSameBits) {
  for (const auto& mesh : meshes_for(kWorld)) {
    for (const auto& [jump, factor] : {std::pair{1, 1}, {2, 4}, {4, 2}}) {
      for (int rank = 0; rank < kWorld; ++rank) replace(rank);
      auto options = local_job(mesh, kSteps);
      options.session.local.jump = jump;
      options.session.local.factor = factor;
      save(options, 3);

      expect_goes_on(run(options), 3);
    }
  }
}

// Covers local-3, local-7.
TEST_F(LocalTierJobs, KeepEveryCliqueCopyAndTheNewestSave) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = uneven();

  save(options, 2);

  const char* const expected[] = {"2: 0 4", "2: 1 3", "2: 2 6 7", "2: 1 3",
                                  "2: 0 4", "2: 5",   "2: 2 6 7", "2: 2 6 7"};
  for (int rank = 0; rank < kWorld; ++rank) EXPECT_EQ(text_of_held(rank), expected[rank]) << rank;
}

// Covers local-8.
TEST_F(LocalTierJobs, BringBackWhatThreeNodesLost) {
  for (const auto& mesh : meshes_for(kWorld)) {
    for (const auto& cliques : {pairs(), uneven()}) {
      for (int rank = 0; rank < kWorld; ++rank) replace(rank);
      auto options = local_job(mesh, kSteps);
      options.session.local.cliques = cliques;
      save(options, 3);
      for (int rank : {6, 3, 4}) replace(rank);

      expect_goes_on(run(options), 3);
    }
  }
}

// Covers local-8.
TEST_F(LocalTierJobs, HoldAllCopiesAgainAfterALoss) {
  auto options = local_job(core::Strategy::zero1, 3);
  options.session.local.cliques = uneven();
  save(options, 3);
  for (int rank : {6, 3, 4}) replace(rank);

  run(options);  // restores, and has no step left to make

  EXPECT_EQ(text_of_held(3), "3: 1 3");
  EXPECT_EQ(text_of_held(4), "3: 0 4");
  EXPECT_EQ(text_of_held(6), "3: 2 6 7");
}

// Covers local-4.
TEST_F(LocalTierJobs, FallBackWhenEveryRankLacksANewestFile) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.keep = 2;
  save(options, 3);
  for (int rank = 0; rank < kWorld; ++rank) hide(rank, rank, core::kManifestName);

  const auto outcome = run(options);

  expect_goes_on(outcome, 2);
  EXPECT_THAT(outcome.ranks[0].restored->passed_over,
              Contains(HasSubstr("rank_00000/manifest.json\" is not there")));
}

TEST_F(LocalTierJobs, TakeAPeersCopyInsteadOfAnAlteredOne) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  save(options, 3);
  rot(0, 0);

  const auto outcome = run(options);

  expect_goes_on(outcome, 3);
  for (const auto& rank : outcome.ranks) {
    ASSERT_EQ(rank.restored->passed_over.size(), 1u);
    EXPECT_THAT(rank.restored->passed_over[0], HasSubstr("do not match their hash"));
  }
}

TEST_F(LocalTierJobs, DoNotTakeAlteredCopiesOfPeers) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  options.session.local.keep = 2;
  save(options, 3);
  rot(1, 0);
  hide(0, 0, core::kManifestName);

  const auto outcome = run(options);

  expect_goes_on(outcome, 2);
}

// Covers local-1, local-9.
TEST_F(LocalTierJobs, IgnoreWhatOthersPutThere) {
  auto options = local_job(core::Strategy::ddp, kSteps);
  save(options, 3);
  for (const auto& node : nodes_) {
    for (const char* name : {"word", "step_00000009", "step_00000009-xyz", "two words",
                             "step_9-0123456789abcdef", "step_00000009-0123456789ABCDEF"}) {
      ASSERT_TRUE(node->make_directory(name));
    }
    ASSERT_TRUE(node->create("step_00000008-0123456789abcdef"));
    ASSERT_TRUE(node->make_directory("step_00000007-0123456789abcdef"));
    ASSERT_TRUE(node->make_directory("step_00000007-0123456789abcdef/rank_00001.tmp"));
    ASSERT_TRUE(node->make_directory("step_00000007-0123456789abcdef/rank_1"));
  }

  expect_goes_on(run(options), 3);
}

// Covers local-5.
TEST_F(LocalTierJobs, FailEverywhereWithOneRankAndLeaveNothing) {
  SimulatedStorageOptions broken;
  broken.write_failure = 1;
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  nodes_[1]->set_options(broken);

  const auto outcome = run(options);

  for (const auto& rank : outcome.ranks) {
    EXPECT_EQ(rank.state_hash, uninterrupted_hash()) << "training goes on";
    ASSERT_EQ(rank.local_saves.size(), static_cast<std::size_t>(kSteps));
    for (const auto& save : rank.local_saves) {
      ASSERT_FALSE(save.committed);
      EXPECT_THAT(save.committed.error().message, HasSubstr("rank 1: "));
    }
  }
  for (const auto& node : nodes_) EXPECT_THAT(*node->list(""), IsEmpty());
}

TEST_F(LocalTierJobs, KeepTheOlderSaveUnlessPeersCopiesFit) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  save(options, 2);
  const auto before = text_of_held(0);
  SimulatedStorageOptions full;
  full.capacity_bytes = nodes_[5]->used_bytes() * 7 / 4;  // room for one's own copy, and half a peer's
  nodes_[5]->set_options(full);

  const auto outcome = run(options);

  expect_goes_on(outcome, 2);
  for (const auto& save : outcome.ranks[0].local_saves) {
    ASSERT_FALSE(save.committed);
    EXPECT_THAT(save.committed.error().message, HasSubstr("rank 5: "));
  }
  for (int rank = 0; rank < kWorld; ++rank) EXPECT_EQ(text_of_held(rank).substr(0, 2), "2:");
  EXPECT_EQ(text_of_held(0), before);
}

TEST_F(LocalTierJobs, SurvivePowerLossOnAllNodesWhenSynced) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  save(options, 3);
  for (const auto& node : nodes_) node->crash();

  expect_goes_on(run(options), 3);
}

TEST_F(LocalTierJobs, SurvivePowerLossOnEveryOtherNodeUnsynced) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  options.session.local.sync = false;
  save(options, 3);
  for (std::size_t node = 0; node < nodes_.size(); node += 2) nodes_[node]->crash();

  expect_goes_on(run(options), 3);
}

// Covers save-26.
TEST_F(TwoTiers, GoOnFromTheLocalOneUnlessOlder) {
  train_to(3);
  expect_goes_on(run_with_disk(job()), 3);
}

// Covers save-26.
TEST_F(TwoTiers, PreferTheLocalOneOfTheSameStep) {
  train_to(4);
  expect_goes_on(run_with_disk(job()), 4);
}

/// Both have the same main values, and parameters of other blocks than the job's. Where nothing is gathered,
/// no gather rounds them by the way.
TEST_F(TwoTiers, RoundParametersToTheContinuingJobsBlocks) {
  auto saving = job();
  saving.session.training.strategy = core::Strategy::ddp;
  saving.width = 1100;
  saving.gather_dtype = core::DType::f8_e5m2;
  saving.steps = 4;
  run_with_disk(saving);
  auto going_on = saving;
  going_on.gather_dtype = core::DType::f8_e4m3;
  going_on.steps = kSteps;
  going_on.local_every = going_on.save_every = 0;

  const auto from_local = run_with_disk(going_on);
  replace(6);
  replace(7);
  const auto from_checkpoint = run_with_disk(going_on);

  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_TRUE(from_local.ranks[rank].restored->is_local);
    EXPECT_FALSE(from_checkpoint.ranks[rank].restored->is_local);
    EXPECT_EQ(from_local.ranks[rank].restored->step, from_checkpoint.ranks[rank].restored->step);
    EXPECT_EQ(from_local.ranks[rank].state_hash, from_checkpoint.ranks[rank].state_hash);
    EXPECT_EQ(from_local.ranks[rank].outcomes.at(0).loss, from_checkpoint.ranks[rank].outcomes.at(0).loss);
  }
}

TEST_F(TwoTiers, FallBackToTheCheckpointWhenCliquesLostAll) {
  train_to(3);
  replace(6);
  replace(7);

  const auto outcome = run_with_disk(job());

  expect_checkpoint(outcome, 2);
  EXPECT_THAT(outcome.ranks[0].restored->passed_over,
              ElementsAre("the local save after step 3: the clique [6, 7] holds no copy of rank 6, 7"));
}

TEST_F(TwoTiers, FallBackToTheCheckpointWhenCopiesAreAltered) {
  train_to(3);
  rot(0, 0);
  rot(1, 0);

  expect_checkpoint(run_with_disk(job()), 2);
}

// Covers local-3.
TEST_F(LocalTierJobs, GoOnWithOtherRanksAndStrategies) {
  std::uint64_t turn = 0;
  for (const auto& mesh : meshes_for(kWorld)) {
    for (const int world : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(fmt::format("mesh {} of 8 ranks, then {} ranks", turn, world));
      for (int rank = 0; rank < kWorld; ++rank) replace(rank);
      save(local_job(mesh, kSteps), 3);

      const auto going_on = local_job(mesh_in_turn(world, ++turn), kSteps);
      expect_goes_on(run(going_on, world), 3);

      for (int former = world; former < kWorld; ++former) EXPECT_EQ(text_of_held(former), "") << former;
    }
  }
}

TEST_F(LocalTierJobs, GoOnWithMoreRanks) {
  for (const auto& mesh : meshes_for(2)) {
    for (int rank = 0; rank < kWorld; ++rank) replace(rank);
    save(local_job(mesh, kSteps), 3, 2);

    expect_goes_on(run(local_job(mesh_in_turn(5, 1), kSteps), 5), 3);
  }
}

TEST_F(LocalTierJobs, LoseOneNodeAfterAnother) {
  for (const auto strategy : {core::Strategy::zero1, core::Strategy::zero3}) {
    nodes_.clear();
    for (int node = 0; node < 6; ++node)
      nodes_.push_back(std::make_unique<SimulatedStorage>(SimulatedStorageOptions{}));
    auto options = local_job(strategy, kSteps);
    for (int world = 6; world > 1; --world) {
      options.session.local.cliques = core::spread_cliques({world}, 2);
      const auto steps = 7 - world;
      options.steps = steps;

      const auto outcome = run(options, world);

      for (const auto& rank : outcome.ranks)
        EXPECT_EQ(rank.outcomes.size(), 1u) << "goes on from the last step";
      nodes_.erase(nodes_.begin() + steps % world);
    }
    options.session.local.cliques.clear();
    options.steps = kSteps;

    expect_goes_on(run(options, 1), 5);
  }
}

TEST_F(LocalTierJobs, TakeAPeersCopyForOtherRanks) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  save(options, 3);
  rot(0, 0);
  replace(5);
  replace(6);
  options.session.local.cliques.clear();

  const auto outcome = run(options, 4);

  expect_goes_on(outcome, 3);
  for (const auto& rank : outcome.ranks)
    EXPECT_THAT(rank.restored->passed_over, ElementsAre(HasSubstr("do not match their hash")));
}

TEST_F(LocalTierJobs, GoBackFromAnothersCopyToTheirOwn) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.cliques = pairs();
  options.session.local.keep = 2;
  save(options, 3);
  hide(0, 0, core::kManifestName);
  rot(1, 0);
  options.session.local.cliques = {{{0}, {2}}, {{1}, {3}}, {{4}, {5}}, {{6}, {7}}};

  const auto outcome = run(options);

  expect_goes_on(outcome, 2);
  EXPECT_THAT(outcome.ranks[0].restored->passed_over, Contains(HasSubstr("do not match their hash")))
      << "copies were gathered first";
}

TEST_F(TwoTiers, UseTheCheckpointWhereOtherRanksLackACopy) {
  train_to(3);
  replace(6);
  replace(7);
  auto options = job();
  options.session.local.cliques.clear();

  const auto outcome = run_with_disk(options, 4);

  expect_checkpoint(outcome, 2);
  EXPECT_THAT(outcome.ranks[0].restored->passed_over,
              Contains(HasSubstr("of its 8 ranks, nobody holds a copy of rank 6")));
}

TEST_F(TwoTiers, TakeCopiesFromOtherCliques) {
  train_to(3);
  replace(1);
  auto options = job();
  options.session.local.cliques = {{{0}, {2}}, {{1}, {3}}, {{4}, {5}}, {{6}, {7}}};

  expect_goes_on(run_with_disk(options), 3);
}

TEST_F(LocalTierJobs, SurviveARanksDeathInEveryKeeperState) {
  std::uint64_t turn = 0;
  for (const char* state : {"copying", "copied", "receiving", "held", "tidying", "kept"}) {
    for (int victim : {0, 3}) {
      for (int rank = 0; rank < kWorld; ++rank) replace(rank);
      auto options = local_job(mesh_in_turn(kWorld, turn++), kSteps);
      options.session.local.cliques = uneven();
      save(options, 2);
      auto simulated = simulation();
      SimulatedFault death;
      death.rank = {victim};
      death.role = messages::Role::replica_keeper;
      death.state = state;
      simulated.faults = {death};
      const auto killed = simulate_tiny(simulated, options);
      ASSERT_EQ(violations_of(killed.report), "") << state;
      ASSERT_FALSE(killed.report.results[static_cast<std::size_t>(victim)]);
      replace(victim);

      const auto outcome = run(options);

      for (const auto& rank : outcome.ranks) {
        ASSERT_TRUE(rank.restored.has_value()) << state << ", rank " << victim;
        EXPECT_GE(rank.restored->step, core::Step{2});
        EXPECT_EQ(rank.state_hash, uninterrupted_hash()) << state << ", rank " << victim;
      }
    }
  }
}

TEST_F(LocalTierJobs, GoOnWhenOneLocalDiskDoesNotAnswer) {
  auto options = local_job(core::Strategy::zero1, kSteps);
  options.session.local.deadline = core::LocalTierOptions{}.deadline;
  auto simulated = simulation();
  simulated.local_io_delays[1] = std::chrono::hours(2);
  simulated.time_limit = std::chrono::hours(100);

  const auto outcome = simulate_tiny(simulated, options);

  EXPECT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.report.steps_committed, kSteps);
  for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.state_hash, uninterrupted_hash());
}

}  // namespace
}  // namespace troupe::actors
