#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "actors/checkpoint/directory.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/hash.hpp"
#include "core/random.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::Strictness;

constexpr std::int64_t kRows = 13;
constexpr std::int64_t kColumns = 3;

/// What a trainer keeps beside its parameters, and what it registers of them.
struct Task {
  core::Strategy strategy = core::Strategy::zero1;
  core::DType dtype = core::DType::f32;
  core::StackingRule stacking;  ///< of the parameter "gate"
  std::int64_t gate_rows = 8;
  bool allow_shape_mismatch = false;
  bool average = true;  ///< rows of "average", shared out over the ranks
  bool clock = true;    ///< "clock", the same on all ranks
  std::int64_t steps = 0;
  bool restore = false;
  Strictness strictness = Strictness::raise_unexpected;
  bool local = false;  ///< saves go into the local tier
};

struct TaskResult {
  std::optional<Restored> restored;
  std::vector<float> average;  ///< this rank's rows
  std::vector<std::int64_t> clock;
  std::vector<float> restored_average;
  std::vector<float> restored_gate;
  std::vector<float> gate;
  std::vector<SaveResult> saves;
};

/// Rows of "average" that the rank holds; some ranks of many hold none.
std::pair<std::int64_t, std::int64_t> rows_of(int rank, int world) {
  return {kRows * rank / world, kRows * (rank + 1) / world};
}

float average_after(std::int64_t steps, std::int64_t element) {
  return static_cast<float>(steps * 1000 + element);
}

std::vector<float> as_floats(std::span<const std::byte> bytes, core::DType dtype) {
  std::vector<float> values;
  for (std::size_t i = 0; i < bytes.size() / core::size_of(dtype); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * core::size_of(dtype), core::size_of(dtype));
    values.push_back(std::bit_cast<float>(dtype == core::DType::bf16 ? bits << 16 : bits));
  }
  return values;
}

class Trainer {
 public:
  Trainer(SimulatedRank& rank, const Task& task) : rank_(rank), task_(task) {
    const auto [begin, end] = rows_of(rank.rank().value, rank.world().value);
    average_.resize(static_cast<std::size_t>((end - begin) * kColumns));
    first_ = begin * kColumns;
    clock_ = {0, 7};
  }

  core::Result<TaskResult> run() {
    session_ = TRY(Session::join(rank_, options(), parameters()));
    initialise();
    set_own(0);
    if (task_.restore) {
      RestoreOptions restore;
      restore.strictness = task_.strictness;
      result_.restored = TRY(session_->restore(restore));
      result_.restored_average = average_;
      result_.restored_gate = gate();
    }
    while (session_->next_step().value < task_.steps) TRY(step());
    TRY(session_->wait_saves());
    TRY(session_->wait_local_saves());
    TRY(session_->publish_all());
    result_.saves = task_.local ? session_->take_local_saves() : session_->take_saves();
    result_.average = average_;
    result_.clock = clock_;
    result_.gate = gate();
    TRY(session_->leave());
    return std::move(result_);
  }

 private:
  std::vector<ParameterSpec> parameters() const {
    ParameterSpec gate{"gate", {task_.gate_rows, 6}, task_.dtype};
    gate.stacking = task_.stacking;
    gate.allow_shape_mismatch = task_.allow_shape_mismatch;
    return {gate, {"plain", {11}, task_.dtype}};
  }

  SessionOptions options() {
    SessionOptions options;
    options.training.strategy = task_.strategy;
    options.training.lanes = 8;
    options.training.bucket_elements = 20;
    options.checkpoint.staging_bytes = 512;
    options.checkpoint.chunk_bytes = 64;
    options.checkpoint.deadline = std::chrono::seconds(30);
    options.checkpoint.load.mode = core::LoadMode::exchange;
    options.local.staging_bytes = 512;
    options.local.chunk_bytes = 64;
    if (task_.average) {
      TrainerTensor rows;
      const auto local_rows = static_cast<std::int64_t>(average_.size()) / kColumns;
      rows.tensor.key = "average";
      rows.tensor.local_shape = {local_rows, kColumns};
      rows.tensor.global_shape = {kRows, kColumns};
      rows.tensor.global_offset = {first_ / kColumns, 0};
      rows.memory = gpu::view_of(std::span(average_));
      options.tensors.push_back(std::move(rows));
    }
    if (task_.clock) {
      TrainerTensor clock;
      clock.tensor = core::ShardedTensor::from_rank_offsets("clock", core::DType::i64, {2}, {},
                                                            {0, {rank_.rank().value}})
                         .value();
      clock.memory = gpu::view_of(std::span(clock_));
      options.tensors.push_back(std::move(clock));
    }
    return options;
  }

  void initialise() {
    for (std::uint32_t p = 0; p < 2; ++p) {
      core::CounterRandom random(5, session_->plan().specs[p].name);
      write(session_->parameter<std::byte>(p), [&](std::size_t i) { return random.uniform(i) - 0.5F; });
    }
  }

  template <class Value>
  void write(std::span<std::byte> bytes, Value value) {
    const auto width = core::size_of(task_.dtype);
    for (std::size_t i = 0; i < bytes.size() / width; ++i) {
      auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value(i)));
      if (task_.dtype == core::DType::bf16) bits >>= 16;
      std::memcpy(bytes.data() + i * width, &bits, width);
    }
  }

  std::vector<float> gate() { return as_floats(session_->parameter<std::byte>(0), task_.dtype); }

  void set_own(std::int64_t steps) {
    for (std::size_t i = 0; i < average_.size(); ++i)
      average_[i] = average_after(steps, first_ + static_cast<std::int64_t>(i));
    clock_[0] = steps;
  }

  core::Result<void> step() {
    const auto done = session_->next_step().value + 1;
    TRY(session_->begin_step(0.01));
    set_own(done);
    for (core::Lane lane : session_->lanes()) {
      TRY(session_->begin_lane(lane));
      session_->begin_microbatch(0);
      for (std::uint32_t p = 0; p < 2; ++p) TRY(session_->before_use(p));
      rank_.compute(std::chrono::microseconds(30));
      for (std::uint32_t p = 2; p-- > 0;) {
        core::CounterRandom noise(6, session_->plan().specs[p].name, session_->next_step(), lane);
        auto gradient = session_->gradient(p);
        for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += noise.uniform(i) - 0.5F;
        session_->gradient_ready(p);
      }
      session_->end_lane(0);
    }
    TRY(session_->finish_step());
    TRY(task_.local ? session_->save_local() : session_->save());
    return {};
  }

  SimulatedRank& rank_;
  const Task& task_;
  std::unique_ptr<Session> session_;
  std::vector<float> average_;
  std::int64_t first_ = 0;
  std::vector<std::int64_t> clock_;
  TaskResult result_;
};

SimulationOptions machines(Storage& disk, int ranks, std::uint64_t seed = 3) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = seed;
  simulation.storage = &disk;
  return simulation;
}

JobOutcome<TaskResult> run(const SimulationOptions& simulation, const Task& task) {
  return simulate_job<TaskResult>(simulation, [&](SimulatedRank& rank) { return Trainer(rank, task).run(); });
}

/// A directory with a checkpoint of every step.
void save_steps(Storage& disk, int ranks, Task task, std::int64_t steps) {
  task.steps = steps;
  const auto outcome = run(machines(disk, ranks), task);
  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) {
    ASSERT_EQ(rank.saves.size(), static_cast<std::size_t>(steps));
    for (const auto& save : rank.saves) ASSERT_TRUE(save.committed) << save.committed.error().message;
  }
}

void expect_average(const std::vector<float>& rows, int rank, int world, std::int64_t steps) {
  const auto first = rows_of(rank, world).first * kColumns;
  for (std::size_t i = 0; i < rows.size(); ++i)
    ASSERT_EQ(rows[i], average_after(steps, first + static_cast<std::int64_t>(i))) << "element " << i;
}

/// The error of the first rank, when all ranks have the same.
std::string common_error(const SimulationReport& report) {
  std::string first;
  for (const auto& result : report.results) {
    if (result) return "a rank came through";
    if (first.empty()) first = result.error().message;
    if (result.error().message != first) return "ranks differ: " + first + " / " + result.error().message;
  }
  return first;
}

TEST(TrainerState, IsSavedAsItWasAndLoadedOnAnyNumberOfRanks) {
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

TEST(TrainerState, IsInLocalCopiesToo) {
  SimulatedStorage disk({});
  auto simulation = machines(disk, 4);
  std::vector<std::unique_ptr<SimulatedStorage>> nodes;
  for (int rank = 0; rank < 4; ++rank) {
    nodes.push_back(std::make_unique<SimulatedStorage>(SimulatedStorageOptions{}));
    simulation.local_storages.push_back(nodes.back().get());
  }
  Task saving;
  saving.steps = 3;
  saving.local = true;
  ASSERT_EQ(problems_of(run(simulation, saving).report), "");
  Task going_on;
  going_on.restore = true;

  const auto outcome = run(simulation, going_on);

  ASSERT_EQ(problems_of(outcome.report), "");
  for (int rank = 0; rank < 4; ++rank) {
    const auto& found = outcome.ranks[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(found.restored && found.restored->is_local);
    expect_average(found.average, rank, 4, 3);
    EXPECT_EQ(found.clock[0], 3);
  }
}

TEST(TrainerState, PartsThatAreNoWholeAreRefusedByAllRanks) {
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

TEST_F(StrictnessOfRestore, RefusesByDefaultWhatTheCheckpointLacks) {
  const auto error = common_error(restore(Strictness::raise_unexpected).report);
  EXPECT_NE(error.find("Unexpected keys"), std::string::npos) << error;
  EXPECT_NE(error.find("average"), std::string::npos) << error;
}

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

TEST_F(StrictnessOfRestore, SaysWhatOnlyTheCheckpointHas) {
  const auto error = common_error(restore(Strictness::raise_all, false).report);
  EXPECT_NE(error.find("Missing keys"), std::string::npos) << error;
  EXPECT_NE(error.find("clock"), std::string::npos) << error;

  const auto outcome = restore(Strictness::return_all, false);
  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.restored->missing, core::KeySet{"clock"});
}

TEST(Strictness, FirstValuesThatADamagedCheckpointOverwroteAreNotKept) {
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

TEST(StackedParameters, AreStoredInPartsAndComeBackTheSame) {
  Task task;
  task.stacking = core::swiglu_stacking(true);
  for (int from : {1, 3, 8}) {
    SimulatedStorage disk({});
    save_steps(disk, from, task, 3);
    const auto manifest = check_quickly(disk, "step_00000003");
    ASSERT_TRUE(manifest) << manifest.error().message;
    for (const char* key : {"gate_w", "gate_v", "optimizer.state.exp_avg.gate_w"}) {
      ASSERT_NE(manifest->find(key), nullptr) << key;
      EXPECT_EQ(manifest->find(key)->shape, (core::Shape{4, 6}));
    }
    EXPECT_EQ(manifest->find("gate"), nullptr);
    auto straight = task;
    straight.steps = 5;
    SimulatedStorage other({});
    const auto expected = run(machines(other, 2), straight).ranks[0].gate;
    for (int to : {1, 2, 4}) {
      auto going_on = straight;
      going_on.restore = true;
      SimulatedStorage same({});
      save_steps(same, from, task, 3);
      const auto outcome = run(machines(same, to), going_on);
      ASSERT_EQ(problems_of(outcome.report), "") << from << " to " << to;
      EXPECT_EQ(outcome.ranks[0].restored->step, core::Step{3});
      EXPECT_EQ(outcome.ranks[0].gate, expected) << from << " to " << to;
    }
  }
}

TEST(StackedParameters, ARuleThatDoesNotFitIsRefused) {
  Task task;
  task.gate_rows = 7;
  task.stacking = core::swiglu_stacking(true);
  SimulatedStorage disk({});
  const auto error = common_error(run(machines(disk, 2), task).report);
  EXPECT_NE(error.find("has 7 rows here, expected an even number"), std::string::npos) << error;
}

TEST(NarrowParameters, GoOnInFp32WithEveryBitTheyHad) {
  SimulatedStorage disk({});
  Task narrow;
  narrow.dtype = core::DType::bf16;
  save_steps(disk, 2, narrow, 3);
  Task wide;
  wide.restore = true;

  const auto outcome = run(machines(disk, 3), wide);

  ASSERT_EQ(problems_of(outcome.report), "");
  const auto& values = outcome.ranks[2].restored_gate;
  const bool any_exact = std::any_of(values.begin(), values.end(), [](float value) {
    return (std::bit_cast<std::uint32_t>(value) & 0xffffU) != 0;
  });
  EXPECT_TRUE(any_exact) << "fp32 values come from the fp32 copies, which bf16 can not hold";
}

TEST(NarrowParameters, CopiesThatACheckpointLacksAreMadeOfTheParameters) {
  // Without moments and fp32 copies, as an import of weights is.
  SimulatedStorage disk({});
  Task wide;
  save_steps(disk, 1, wide, 2);
  Task narrow;
  narrow.dtype = core::DType::bf16;
  narrow.restore = true;
  narrow.steps = 4;

  const auto outcome = run(machines(disk, 2), narrow);

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[0].restored->step, core::Step{2});
  EXPECT_EQ(outcome.ranks[0].gate, outcome.ranks[1].gate);
}

TEST(ShapesOfParameters, MayDifferWhereThatIsAllowed) {
  SimulatedStorage disk({});
  save_steps(disk, 2, {}, 2);
  Task wider;
  wider.gate_rows = 10;
  wider.restore = true;
  const auto refused = common_error(run(machines(disk, 3), wider).report);
  EXPECT_NE(refused.find("Global shape mismatch"), std::string::npos) << refused;

  wider.allow_shape_mismatch = true;
  const auto outcome = run(machines(disk, 3), wider);

  ASSERT_EQ(problems_of(outcome.report), "");
  Task same;
  same.restore = true;
  const auto stored = run(machines(disk, 3), same).ranks[1].restored_gate;
  auto expected = stored;
  expected.resize(60, 0.0F);
  EXPECT_EQ(outcome.ranks[1].restored_gate, expected);
}

}  // namespace
}  // namespace troupe::actors
