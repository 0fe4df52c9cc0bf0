#include <gtest/gtest.h>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "actors/planes/step/verdict.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

constexpr std::int64_t kSavedAt = 3;
constexpr std::int64_t kStepsOfAJob = 7;

TinyTrainerOptions saving_job(const TinyMesh& mesh) {
  auto options = tiny_job(mesh);
  options.session.checkpoint.staging_bytes = 2048;
  options.session.checkpoint.chunk_bytes = 256;
  options.session.checkpoint.deadline = std::chrono::seconds(30);
  return options;
}

JobOutcome<TinyTrainerResult> run_on(Storage& storage, int ranks, const TinyTrainerOptions& options,
                                     std::uint64_t seed = 5) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = seed;
  simulation.storage = &storage;
  return simulate_tiny(simulation, options);
}

std::uint64_t uninterrupted_hash() {
  auto options = tiny_job(core::Strategy::ddp);
  options.steps = kStepsOfAJob;
  auto outcome = simulate_tiny(1, 1, options);
  EXPECT_EQ(problems_of(outcome.report), "");
  return outcome.ranks[0].state_hash;
}

// Covers stored-12.
TEST(Checkpoint, GoesOnBitwiseOnOtherRanksAndStrategies) {
  const auto expected = uninterrupted_hash();
  const std::vector<int> worlds{1, 2, 3, 4, 8};
  std::uint64_t turn = 0;
  for (int from : worlds) {
    for (const auto& saved : meshes_for(from)) {
      if (from > 4 && !saved.is_data_parallel()) continue;
      SimulatedStorage disk({});
      auto saving = saving_job(saved);
      saving.steps = kSavedAt;
      saving.save_every = kSavedAt;
      auto before = run_on(disk, from, saving);
      ASSERT_EQ(problems_of(before.report), "") << from << " ranks";
      ASSERT_EQ(before.ranks[0].saves.size(), 1u);
      ASSERT_TRUE(before.ranks[0].saves[0].committed) << before.ranks[0].saves[0].committed.error().message;
      for (int to : worlds) {
        for (int i = 0; i < (saved.is_data_parallel() ? 2 : 1); ++i) {
          const auto loaded = mesh_in_turn(to, turn++);
          auto going_on = saving_job(loaded);
          going_on.steps = kStepsOfAJob;
          going_on.restore = true;

          auto after = run_on(disk, to, going_on);

          ASSERT_EQ(problems_of(after.report), "") << from << " to " << to << " ranks";
          for (const auto& rank : after.ranks) {
            ASSERT_TRUE(rank.restored.has_value());
            ASSERT_EQ(rank.restored->step, core::Step{kSavedAt});
            ASSERT_EQ(rank.restored->common, (core::Value{core::Value::Map{{"done", kSavedAt}}}));
            ASSERT_EQ(rank.outcomes.size(), static_cast<std::size_t>(kStepsOfAJob - kSavedAt));
            ASSERT_EQ(rank.state_hash, expected)
                << from << " ranks of " << saved.name() << " to " << to << " of " << loaded.name();
          }
        }
      }
    }
  }
}

TEST(Checkpoint, OfEveryStepIsWholeAndLeavesTrainingAlone) {
  const auto expected = uninterrupted_hash();
  SimulatedStorage disk({});
  auto saving = saving_job(core::Strategy::zero1);
  saving.steps = kStepsOfAJob;
  saving.save_every = 1;

  auto outcome = run_on(disk, 4, saving);

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[0].state_hash, expected) << "saving changes nothing";
  ASSERT_EQ(outcome.ranks[0].saves.size(), static_cast<std::size_t>(kStepsOfAJob));
  const auto checkpoints = list_checkpoints(disk);
  ASSERT_TRUE(checkpoints);
  ASSERT_EQ(checkpoints->size(), static_cast<std::size_t>(kStepsOfAJob));
  for (const auto& checkpoint : *checkpoints) {
    auto manifest = check_quickly(disk, checkpoint.name);
    ASSERT_TRUE(manifest) << manifest.error().message;
    auto verified = verify_checkpoint(disk, checkpoint.name, *manifest);
    EXPECT_TRUE(verified) << verified.error().message;
    EXPECT_EQ(manifest->step, checkpoint.step);
  }
}

TEST(Checkpoint, TellsWhatWasDecidedOnItsLastStep) {
  SimulatedStorage disk({});
  auto saving = saving_job(core::Strategy::zero1);
  saving.steps = 4;
  saving.save_every = 4;
  const auto before = run_on(disk, 3, saving);
  auto going_on = saving_job(core::Strategy::zero2);
  going_on.restore = true;

  const auto after = run_on(disk, 2, going_on);

  const auto& decided = before.ranks[0].outcomes.back();
  for (const auto& rank : after.ranks) {
    ASSERT_TRUE(rank.restored && rank.restored->last);
    EXPECT_EQ(rank.restored->last->step, decided.step);
    EXPECT_EQ(rank.restored->last->loss, decided.loss);
    EXPECT_EQ(rank.restored->last->gradient_norm, decided.gradient_norm);
    EXPECT_TRUE(rank.restored->last->committed);
  }
}

/// The device has room for what training takes, and for the state once more.
// Covers local-17.
TEST(Checkpoint, TakesNoMoreStagingThanThereIsState) {
  auto options = tiny_job(core::Strategy::ddp);
  options.layers = 20;
  options.steps = 2;
  SimulationOptions simulation;
  simulation.ranks = {1};
  std::size_t training = 0;
  std::size_t state = 0;
  simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
    // And the verdict's words, which are in staging memory twice.
    const auto words = verdict_words();
    training = session->device_bytes() + 2 * words * sizeof(std::int64_t);
    // A parameter and its two moments.
    for (const auto& spec : session->parameters())
      state += 3 * sizeof(float) * static_cast<std::size_t>(spec.elements());
    TRY(session->leave());
    return true;
  });
  SimulatedStorage disk({});
  simulation.storage = &disk;
  simulation.device.memory_bytes = training + state;
  options.save_every = 1;

  const auto outcome = simulate_tiny(simulation, options);

  ASSERT_EQ(problems_of(outcome.report), "");
  ASSERT_EQ(outcome.ranks[0].saves.size(), 2u);
  for (const auto& save : outcome.ranks[0].saves) EXPECT_TRUE(save.committed);
}

TEST(Checkpoint, FallsBackToTheNewestWholeOne) {
  SimulatedStorage disk({});
  auto saving = saving_job(core::Strategy::zero1);
  saving.steps = kSavedAt;
  saving.save_every = 1;
  ASSERT_EQ(problems_of(run_on(disk, 2, saving).report), "");
  ASSERT_TRUE(disk.rot("step_00000003/shard_00001_0.safetensors"));
  ASSERT_TRUE(disk.remove("step_00000002/manifest.json"));
  auto going_on = saving_job(core::Strategy::ddp);
  going_on.steps = kStepsOfAJob;
  going_on.restore = true;

  auto outcome = run_on(disk, 3, going_on);

  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) {
    ASSERT_TRUE(rank.restored.has_value());
    EXPECT_EQ(rank.restored->name, "step_00000001");
    EXPECT_EQ(rank.restored->passed_over.size(), 2u);
    EXPECT_EQ(rank.state_hash, uninterrupted_hash());
  }
}

TEST(Checkpoint, RefusesToBeginAnewWhereOnlyDamagedCheckpointsAre) {
  SimulatedStorage disk({});
  auto saving = saving_job(core::Strategy::zero1);
  saving.steps = 1;
  saving.save_every = 1;
  ASSERT_EQ(problems_of(run_on(disk, 2, saving).report), "");
  ASSERT_TRUE(disk.rot("step_00000001/manifest.json"));
  auto going_on = saving_job(core::Strategy::zero1);
  going_on.restore = true;

  auto outcome = run_on(disk, 2, going_on);

  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("no checkpoint could be loaded"), std::string::npos)
        << result.error().message;
  }
}

TEST(Checkpoint, BeginsAnewInAnEmptyDirectory) {
  SimulatedStorage disk({});
  auto options = saving_job(core::Strategy::zero1);
  options.steps = kStepsOfAJob;
  options.restore = true;

  auto outcome = run_on(disk, 2, options);

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_FALSE(outcome.ranks[0].restored.has_value());
  EXPECT_EQ(outcome.ranks[0].state_hash, uninterrupted_hash());
}

}  // namespace
}  // namespace troupe::actors
