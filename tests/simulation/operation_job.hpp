#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "core/errors.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors::operations {

using core::DeclaredOperation;
using core::DType;
using core::Result;
using core::Strategy;
using Kind = core::CollectiveKind;
using Pass = core::Pass;

inline constexpr std::uint32_t kUnits = 3;

/// Where a trainer is in its lane.
struct Place {
  Pass pass = Pass::forward;
  std::uint32_t unit = 0;
  int lane = 0;
  int microbatch = 0;

  bool is(Pass of, std::uint32_t which) const { return pass == of && unit == which; }
};

/// Two ranks with one share of three units each, which sum something over both in forward, in unit 1 gather
/// counts, and in its backward exchange as much as these say.
inline std::vector<DeclaredOperation> usual() {
  std::vector<DeclaredOperation> operations;
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
    operations.push_back({"tp", Kind::all_reduce, DType::f32, {4, 4}, false, Pass::forward, {{unit}}});
  }
  operations.push_back({"tp", Kind::all_gather, DType::i64, {1, 1}, false, Pass::forward, {{1}}});
  operations.push_back({"tp", Kind::all_to_all, DType::u8, {6, 6}, true, Pass::backward, {{1}}});
  return operations;
}

inline Result<void> sum(TrainerGroup& tp, std::size_t elements = 4) {
  std::vector<float> values(elements, 1);
  return tp.wait(TRY(tp.all_reduce(gpu::view_of(std::span(values)), DType::f32)));
}

inline Result<void> gather_counts(TrainerGroup& tp) {
  const std::vector<std::int64_t> own(1, 3);
  std::vector<std::int64_t> all(2);
  return tp.wait(
      TRY(tp.all_gather(gpu::view_of(std::span(own)), gpu::view_of(std::span(all)), DType::i64, {1, 1})));
}

inline Result<void> exchange(TrainerGroup& tp, std::size_t to_each) {
  const std::vector<std::uint8_t> given(2 * to_each, 1);
  std::vector<std::uint8_t> taken(2 * to_each);
  const TrainerGroup::Counts counts(2, to_each);
  return tp.wait(TRY(tp.all_to_all(gpu::view_of(std::span(given)), counts, gpu::view_of(std::span(taken)),
                                   counts, DType::u8)));
}

/// Posts what is declared.
inline Result<void> post_usual(TrainerGroup& tp, const Place& place) {
  if (place.pass == Pass::forward) TRY(sum(tp));
  if (place.is(Pass::forward, 1)) TRY(gather_counts(tp));
  if (place.is(Pass::backward, 1)) TRY(exchange(tp, 3));
  return {};
}

struct Job {
  Strategy strategy = Strategy::zero3;
  std::vector<DeclaredOperation> operations = usual();
  std::function<Result<void>(TrainerGroup&, const Place&)> post = post_usual;
  int microbatches = 1;
  int lanes = 2;
  core::DeclaredOrder order{};
};

inline std::vector<core::ParameterSpec> parameters() {
  std::vector<core::ParameterSpec> specs;
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
    specs.push_back({"w" + std::to_string(unit), {16}});
    specs.back().unit = core::UnitIndex{unit};
  }
  return specs;
}

inline SessionOptions options_of(const Job& job) {
  SessionOptions options;
  options.training.strategy = job.strategy;
  options.training.tensor_parallel = 2;
  options.training.lanes = job.lanes;
  options.training.microbatches = job.microbatches;
  options.training.bucket_elements = 16;
  options.operations = job.operations;
  options.order = job.order;
  return options;
}

/// Units as the job goes through them.
inline std::vector<std::uint32_t> units_in(const Job& job, Pass pass) {
  std::vector<std::uint32_t> units;
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) units.push_back(unit);
  if (!job.order.forward.empty()) {
    for (std::uint32_t i = 0; i < kUnits; ++i) units[i] = job.order.forward[i].value;
  }
  if (pass == Pass::backward) std::reverse(units.begin(), units.end());
  return units;
}

inline Result<void> pass_through(Session& session, TrainerGroup& tp, const Job& job, Place place) {
  for (place.unit = 0; const auto unit : units_in(job, place.pass)) {
    place.unit = unit;
    TRY(session.before_use({unit}));
    TRY(job.post(tp, place));
    if (place.pass == Pass::forward) continue;
    for (auto& element : TRY(session.gradient({unit}))) element += 1;
    TRY(session.gradient_ready({unit}));
  }
  return {};
}

inline Result<void> step(Session& session, const Job& job) {
  auto& tp = *TRY(session.group("tp"));
  TRY(session.begin_step(0.1));
  for (const core::Lane lane : session.lanes()) {
    TRY(session.begin_lane(lane));
    for (int microbatch = 0; microbatch < job.microbatches; ++microbatch) {
      TRY(session.begin_microbatch(microbatch));
      TRY(pass_through(session, tp, job, {Pass::forward, 0, lane.value, microbatch}));
      TRY(session.begin_backward());
      TRY(pass_through(session, tp, job, {Pass::backward, 0, lane.value, microbatch}));
    }
    TRY(session.end_lane(0));
  }
  CHECK(TRY(session.finish_step()).committed, "nothing refuses a step here");
  return {};
}

using Values = std::vector<float>;

inline Result<Values> values_of(Session& session) {
  Values values;
  TRY(session.begin_evaluation());
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
    TRY(session.before_use({unit}));
    const auto own = TRY(session.parameter({unit}));
    values.insert(values.end(), own.begin(), own.end());
  }
  TRY(session.end_evaluation());
  return values;
}

inline JobOutcome<Values> run(const Job& job, int ranks = 2, bool in_launch_order = false) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.fabric.in_launch_order = in_launch_order;
  return simulate_job<Values>(simulation, [&](SimulatedRank& rank) -> Result<Values> {
    auto session = TRY(Session::join(rank, options_of(job), parameters()));
    for (int i = 0; i < 2; ++i) TRY(step(*session, job));
    auto values = TRY(values_of(*session));
    TRY(session->leave());
    return values;
  });
}

/// Why all ranks of a job end.
inline std::string refusal(const Job& job) {
  const auto outcome = run(job);
  EXPECT_EQ(violations_of(outcome.report), "");
  for (const auto& result : outcome.report.results) {
    if (result) return "it came to its end";
  }
  EXPECT_EQ(outcome.report.results[0].error().code, core::Errc::invalid_argument);
  return outcome.report.results[0].error().message;
}

}  // namespace troupe::actors::operations
