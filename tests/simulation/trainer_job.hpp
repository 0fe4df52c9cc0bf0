#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "core/random.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {

inline constexpr std::int64_t kRows = 13;
inline constexpr std::int64_t kColumns = 3;

/// What a trainer keeps besides its parameters, and what it registers of them.
struct Task {
  core::Strategy strategy = core::Strategy::zero1;
  core::DType dtype = core::DType::f32;
  core::StackingRule stacking;  ///< of the parameter "gate"
  std::int64_t gate_rows = 8;
  bool allow_shape_mismatch = false;
  bool plain = true;    ///< a second parameter
  bool average = true;  ///< rows of "average", shared out over the ranks
  bool clock = true;    ///< "clock", the same on all ranks
  std::int64_t steps = 0;
  bool restore = false;
  core::Strictness strictness = core::Strictness::raise_unexpected;
  bool local = false;  ///< saves go into the local tier
};

struct TaskResult {
  std::optional<Restored> restored;
  std::vector<float> average;  ///< this rank's rows
  std::vector<std::int64_t> clock;
  std::vector<float> restored_average;
  std::vector<float> restored_gate;
  std::vector<float> gate;
  std::vector<float> first_plain;  ///< before the restore
  std::vector<float> plain;
  std::vector<SaveResult> saves;
};

/// Rows of "average" that the rank holds; some ranks of many hold none.
inline std::pair<std::int64_t, std::int64_t> rows_of(int rank, int world) {
  return {kRows * rank / world, kRows * (rank + 1) / world};
}

inline float average_after(std::int64_t steps, std::int64_t element) {
  return static_cast<float>(steps * 1000 + element);
}

inline std::vector<float> as_floats(std::span<const std::byte> bytes, core::DType dtype) {
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
    const auto [begin, end] = rows_of(rank.rank().value, rank.world_size().value);
    average_.resize(static_cast<std::size_t>((end - begin) * kColumns));
    first_ = begin * kColumns;
    clock_ = {0, 7};
  }

  core::Result<TaskResult> run() {
    session_ = TRY(Session::join(rank_, options(), parameters()));
    initialise();
    result_.first_plain = plain();
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
    result_.plain = plain();
    TRY(session_->leave());
    return std::move(result_);
  }

 private:
  std::vector<core::ParameterSpec> parameters() const {
    core::ParameterSpec gate{"gate", {task_.gate_rows, 6}, task_.dtype};
    gate.stacking = task_.stacking;
    gate.allow_shape_mismatch = task_.allow_shape_mismatch;
    std::vector<core::ParameterSpec> specs{gate};
    if (task_.plain) specs.push_back({"plain", {11}, task_.dtype});
    return specs;
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
    for (std::uint32_t p = 0; p < count(); ++p) {
      core::CounterRandom random(5, session_->parameters()[p].name);
      write(session_->parameter<std::byte>({p}).value(),
            [&](std::size_t i) { return random.uniform(i) - 0.5F; });
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

  std::uint32_t count() const { return task_.plain ? 2 : 1; }
  std::vector<float> gate() { return as_floats(session_->parameter<std::byte>({0}).value(), task_.dtype); }
  std::vector<float> plain() {
    return task_.plain ? as_floats(session_->parameter<std::byte>({1}).value(), task_.dtype)
                       : std::vector<float>{};
  }

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
      TRY(session_->begin_microbatch(0));
      for (std::uint32_t p = 0; p < count(); ++p) TRY(session_->before_use({p}));
      rank_.compute(std::chrono::microseconds(30));
      for (std::uint32_t p = count(); p-- > 0;) {
        core::CounterRandom noise(6, session_->parameters()[p].name, session_->next_step(), lane);
        auto gradient = TRY(session_->gradient({p}));
        for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += noise.uniform(i) - 0.5F;
        TRY(session_->gradient_ready({p}));
      }
      TRY(session_->end_lane(0));
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

inline SimulationOptions machines(Storage& disk, int ranks, std::uint64_t seed = 3) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = seed;
  simulation.storage = &disk;
  return simulation;
}

inline JobOutcome<TaskResult> run(const SimulationOptions& simulation, const Task& task) {
  return simulate_job<TaskResult>(simulation, [&](SimulatedRank& rank) { return Trainer(rank, task).run(); });
}

/// A directory with a checkpoint of every step.
inline void save_steps(Storage& disk, int ranks, Task task, std::int64_t steps) {
  task.steps = steps;
  const auto outcome = run(machines(disk, ranks), task);
  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) {
    ASSERT_EQ(rank.saves.size(), static_cast<std::size_t>(steps));
    for (const auto& save : rank.saves) ASSERT_TRUE(save.committed) << save.committed.error().message;
  }
}

inline void expect_average(const std::vector<float>& rows, int rank, int world, std::int64_t steps) {
  const auto first = rows_of(rank, world).first * kColumns;
  for (std::size_t i = 0; i < rows.size(); ++i)
    ASSERT_EQ(rows[i], average_after(steps, first + static_cast<std::int64_t>(i))) << "element " << i;
}

/// The error of the first rank, when all ranks have the same.
inline std::string common_error(const SimulationReport& report) {
  std::string first;
  for (const auto& result : report.results) {
    if (result) return "a rank came through";
    if (first.empty()) first = result.error().message;
    if (result.error().message != first) return "ranks differ: " + first + " / " + result.error().message;
  }
  return first;
}

}  // namespace troupe::actors
