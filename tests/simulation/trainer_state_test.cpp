#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "actors/planes/replica/copies.hpp"
#include "core/errors.hpp"
#include "tests/simulation/trainer_job.hpp"

namespace troupe::actors {
namespace {

using core::Strictness;

/// A disk of its own for local copies of each rank.
std::vector<std::unique_ptr<SimulatedStorage>> add_nodes(SimulationOptions& simulation, int ranks) {
  std::vector<std::unique_ptr<SimulatedStorage>> nodes;
  for (int rank = 0; rank < ranks; ++rank) {
    nodes.push_back(std::make_unique<SimulatedStorage>(SimulatedStorageOptions{}));
    simulation.local_storages.push_back(nodes.back().get());
  }
  return nodes;
}

// Covers save-5.
TEST(TrainerState, IsSavedUnchangedAndLoadedOnAnyRanks) {
  for (int from : {1, 2, 3, 4, 8}) {
    SimulatedStorage disk({});
    save_steps(disk, from, {}, 3);
    for (int to : {1, 2, 3, 4, 8}) {
      Task going_on;
      going_on.restore = true;
      going_on.strategy = to % 2 == 0 ? core::Strategy::ddp : core::Strategy::zero1;

      const auto outcome = run(machines(disk, to), going_on);

      ASSERT_EQ(problems_of(outcome.report), "") << from << " to " << to;
      for (int rank = 0; rank < to; ++rank) {
        const auto& found = outcome.ranks[static_cast<std::size_t>(rank)];
        ASSERT_EQ(found.restored->step, core::Step{3});
        expect_average(found.average, rank, to, 3);
        EXPECT_EQ(found.clock, (std::vector<std::int64_t>{3, 7}));
      }
    }
  }
}

// Covers save-1, save-32, local-16.
TEST(TrainerState, EveryCheckpointHoldsTheTensorsOfItsOwnStep) {
  SimulatedStorage disk({});
  save_steps(disk, 3, {}, 4);
  for (std::int64_t step = 4; step > 0; --step) {
    Task look;
    look.restore = true;
    const auto outcome = run(machines(disk, 2), look);
    ASSERT_EQ(problems_of(outcome.report), "");
    ASSERT_EQ(outcome.ranks[1].restored->step.value, step);
    expect_average(outcome.ranks[1].average, 1, 2, step);
    ASSERT_TRUE(remove_tree(disk, outcome.ranks[1].restored->name));
  }
}

// Covers local-11.
TEST(TrainerState, IsInLocalCopiesToo) {
  for (const int to : {1, 2, 3, 4, 8}) {
    SimulatedStorage disk({});
    auto simulation = machines(disk, 4);
    const auto nodes = add_nodes(simulation, std::max(to, 4));
    Task saving;
    saving.steps = 3;
    saving.local = true;
    ASSERT_EQ(problems_of(run(simulation, saving).report), "");
    Task going_on;
    going_on.restore = true;
    simulation.ranks = {to};

    const auto outcome = run(simulation, going_on);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (int rank = 0; rank < to; ++rank) {
      const auto& found = outcome.ranks[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(found.restored && found.restored->is_local);
      expect_average(found.average, rank, to, 3);
      EXPECT_EQ(found.clock[0], 3);
    }
  }
}

TEST(TrainerState, LocalCopiesThatLackATensorArePassedOver) {
  SimulatedStorage disk({});
  save_steps(disk, 2, {}, 2);
  auto simulation = machines(disk, 2);
  const auto nodes = add_nodes(simulation, 2);
  Task saving;
  saving.steps = 3;
  saving.local = true;
  saving.average = false;
  ASSERT_EQ(problems_of(run(simulation, saving).report), "");
  Task going_on;
  going_on.restore = true;
  simulation.ranks = {1};

  const auto outcome = run(simulation, going_on);

  ASSERT_EQ(problems_of(outcome.report), "");
  const auto& restored = outcome.ranks[0].restored;
  ASSERT_TRUE(restored && !restored->is_local);
  EXPECT_EQ(restored->step, core::Step{2});
  ASSERT_EQ(restored->passed_over.size(), 1u);
  EXPECT_NE(restored->passed_over[0].find("has no tensor 'average'"), std::string::npos)
      << restored->passed_over[0];
}

/// Rank 0 holds 4 elements of "average", rank 1 an empty part of it.
core::Result<std::vector<float>> train_with_an_empty_part(SimulatedRank& rank, core::Strategy strategy,
                                                          bool restores) {
  const std::int64_t rows = rank.rank().value == 0 ? 4 : 0;
  std::vector<float> values(static_cast<std::size_t>(rows), restores ? 0.0F : 7.0F);
  SessionOptions options;
  options.training.strategy = strategy;
  TrainerTensor tensor;
  tensor.tensor.key = "average";
  tensor.tensor.local_shape = {rows};
  tensor.tensor.global_shape = {4};
  tensor.tensor.global_offset = {4 - rows};
  tensor.memory = gpu::view_of(std::span(values));
  options.tensors.push_back(tensor);
  auto session = TRY(Session::join(rank, options, {{"weight", {4}}}));
  if (restores) {
    const auto restored = TRY(session->restore());
    if (!restored || !restored->is_local) return core::fail(core::Errc::not_found, "no local save is there");
  } else {
    TRY(session->save_local());
    TRY(session->wait_local_saves());
    for (const auto& save : session->take_local_saves()) TRY(core::Result<void>(save.committed));
  }
  TRY(session->leave());
  return values;
}

TEST(TrainerState, IsInLocalCopiesThoughOneRankHoldsNone) {
  // Rank 1 holds parameters besides, or nothing.
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    SimulatedStorage disk({});
    auto simulation = machines(disk, 2);
    const auto nodes = add_nodes(simulation, 2);
    const auto saved = simulate_job<std::vector<float>>(
        simulation, [&](SimulatedRank& rank) { return train_with_an_empty_part(rank, strategy, false); });
    ASSERT_EQ(problems_of(saved.report), "");

    const auto outcome = simulate_job<std::vector<float>>(
        simulation, [&](SimulatedRank& rank) { return train_with_an_empty_part(rank, strategy, true); });

    ASSERT_EQ(problems_of(outcome.report), "");
    EXPECT_EQ(outcome.ranks[0], std::vector<float>(4, 7.0F));
    EXPECT_TRUE(outcome.ranks[1].empty());
  }
}

TEST(TrainerState, PartsThatAreIncompleteAreRefusedByAllRanks) {
  SimulatedStorage disk({});
  auto outcome = simulate_job<int>(machines(disk, 2), [](SimulatedRank& rank) -> core::Result<int> {
    std::vector<float> values(4);
    SessionOptions options;
    // Both say that they are the ones who hold it.
    TrainerTensor tensor;
    tensor.tensor = TRY(core::ShardedTensor::from_rank_offsets("bias", core::DType::f32, {4}));
    tensor.memory = gpu::view_of(std::span(values));
    options.tensors.push_back(tensor);
    TRY(Session::join(rank, options, {{"weight", {4}}}));
    return 0;
  });
  const auto error = common_error(outcome.report);
  EXPECT_NE(error.find("bias"), std::string::npos) << error;
  EXPECT_NE(error.find("Invalid access pattern"), std::string::npos) << error;
}

// Covers save-33.
TEST(TrainerState, KeysAndSizesAreChecked) {
  SimulatedStorage disk({});
  std::vector<float> values(4);
  const auto join = [&](const char* key, std::int64_t elements) {
    auto outcome = simulate_job<int>(machines(disk, 1), [&](SimulatedRank& rank) -> core::Result<int> {
      SessionOptions options;
      TrainerTensor tensor;
      tensor.tensor = TRY(core::ShardedTensor::from_rank_offsets(key, core::DType::f32, {elements}));
      tensor.memory = gpu::view_of(std::span(values));
      options.tensors.push_back(tensor);
      TRY(Session::join(rank, options, {{"weight", {4}}}));
      return 0;
    });
    return common_error(outcome.report);
  };
  EXPECT_NE(join("bias", 5).find("takes 20 bytes, its memory has 16"), std::string::npos);
  EXPECT_NE(join("weight", 4).find("two tensors would be stored as 'weight'"), std::string::npos);
  EXPECT_NE(join("optimizer.state.exp_avg.weight", 4).find("two tensors"), std::string::npos);
}

class StrictnessOfRestore : public testing::Test {
 protected:
  /// A checkpoint without "average".
  StrictnessOfRestore() {
    Task saving;
    saving.average = false;
    save_steps(disk, 2, saving, 2);
  }
  JobOutcome<TaskResult> restore(Strictness strictness, bool clock = true) {
    Task task;
    task.restore = true;
    task.clock = clock;
    task.strictness = strictness;
    return run(machines(disk, 3), task);
  }
  SimulatedStorage disk{{}};
};

// Covers uneven-12, strict-4.
TEST_F(StrictnessOfRestore, RefusesByDefaultWhatTheCheckpointLacks) {
  const auto error = common_error(restore(Strictness::raise_unexpected).report);
  EXPECT_NE(error.find("Unexpected keys"), std::string::npos) << error;
  EXPECT_NE(error.find("average"), std::string::npos) << error;
}

// Covers strict-6.
TEST_F(StrictnessOfRestore, ThatChecksNothingFailsWhereAKeyIsRead) {
  const auto error = common_error(restore(Strictness::assume_ok_unexpected).report);
  EXPECT_EQ(error.find("Unexpected keys"), std::string::npos) << error;
  EXPECT_NE(error.find("average"), std::string::npos) << error;
}

// Covers uneven-12, stored-16, strict-3.
TEST_F(StrictnessOfRestore, ToleratedKeysKeepTheirValues) {
  for (auto strictness : {Strictness::log_unexpected, Strictness::log_all, Strictness::ignore_all,
                          Strictness::return_unexpected, Strictness::return_all}) {
    const auto outcome = restore(strictness);
    ASSERT_EQ(problems_of(outcome.report), "") << core::name_of(strictness);
    const bool returns = strictness == Strictness::return_unexpected || strictness == Strictness::return_all;
    for (int rank = 0; rank < 3; ++rank) {
      const auto& found = outcome.ranks[static_cast<std::size_t>(rank)];
      ASSERT_EQ(found.restored->step, core::Step{2});
      expect_average(found.average, rank, 3, 0);
      EXPECT_EQ(found.clock[0], 2);
      EXPECT_EQ(found.restored->unexpected, returns ? core::KeySet{"average"} : core::KeySet{});
      EXPECT_EQ(found.restored->missing, core::KeySet{});
    }
  }
}

// Covers stored-16, strict-5.
TEST_F(StrictnessOfRestore, SaysWhatOnlyTheCheckpointHas) {
  const auto error = common_error(restore(Strictness::raise_all, false).report);
  EXPECT_NE(error.find("Missing keys"), std::string::npos) << error;
  EXPECT_NE(error.find("clock"), std::string::npos) << error;

  const auto outcome = restore(Strictness::return_all, false);
  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.restored->missing, core::KeySet{"clock"});
}

TEST(Strictness, FirstValuesOverwrittenByDamagedCheckpointsAreNotKept) {
  SimulatedStorage disk({});
  save_steps(disk, 2, {}, 3);
  ASSERT_TRUE(disk.rot("step_00000003/shard_00001_0.safetensors"));
  ASSERT_TRUE(remove_tree(disk, "step_00000002"));
  ASSERT_TRUE(remove_tree(disk, "step_00000001"));
  Task without;
  without.average = false;
  save_steps(disk, 2, without, 2);
  Task task;
  task.restore = true;
  task.strictness = Strictness::ignore_all;
  const auto error = common_error(run(machines(disk, 3), task).report);
  EXPECT_NE(error.find("its first values are lost"), std::string::npos) << error;
}

TEST(Strictness, FirstValuesOverwrittenByDamagedCopiesAreNotKept) {
  SimulatedStorage disk({});
  Task without;
  without.average = false;
  save_steps(disk, 2, without, 1);
  auto simulation = machines(disk, 2);
  const auto nodes = add_nodes(simulation, 2);
  Task saving;
  saving.steps = 3;
  saving.local = true;
  ASSERT_EQ(problems_of(run(simulation, saving).report), "");
  for (const auto& node : nodes) {
    const auto found = find_copies(*node);
    for (const auto& copy : found->held) {
      const auto file = fmt::format("shard_{:05}_0.safetensors", copy.owner.value);
      ASSERT_TRUE(node->rot(path_in(path_of(copy.name, copy.owner), file)));
    }
  }
  Task task;
  task.restore = true;
  task.strictness = Strictness::ignore_all;

  const auto error = common_error(run(simulation, task).report);

  EXPECT_NE(error.find("its first values are lost"), std::string::npos) << error;
}

}  // namespace
}  // namespace troupe::actors
