#include <gtest/gtest.h>

#include <chrono>
#include <tuple>

#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::actors {
namespace {

/// What each rank has at the end.
struct Trained {
  Values values;
  std::vector<SaveResult> saves;
};

/// Reads, and waits for, nothing but what the step uses; nothing is published between steps.
core::Result<void> run_step(Session& session, const Script& script) {
  TRY(session.begin_step(script.learning_rate));
  for (core::Lane lane : session.lanes()) {
    TRY(session.begin_lane(lane));
    for (auto p = static_cast<std::uint32_t>(script.parameters.size()); p-- > 0;) {
      GradientPlace place{session.next_step(), lane, 0, p, 0};
      if (script.uses(place) == 0) continue;
      TRY(session.before_use({p}));
      auto gradient = TRY(session.gradient({p}));
      for (; place.element < gradient.size(); ++place.element)
        gradient[place.element] += script.gradient(place);
      TRY(session.gradient_ready({p}));
    }
    TRY(session.end_lane(0));
  }
  return {};
}

core::Result<Trained> train(SimulatedRank& rank, const Script& script, bool saves) {
  auto session = TRY(Session::join(rank, script.session, script.parameters));
  Trained trained;
  for (std::int64_t step = 0; step < script.steps; ++step) {
    TRY(run_step(*session, script));
    TRY(session->finish_step(script.refusal(rank.rank(), session->next_step())));
    if (saves) TRY(session->save());
  }
  TRY(session->publish_all());
  for (std::uint32_t p = 0; p < script.parameters.size(); ++p) {
    const auto values = TRY(session->parameter({p}));
    trained.values.emplace_back(values.begin(), values.end());
  }
  TRY(session->wait_saves());
  trained.saves = session->take_saves();
  TRY(session->leave());
  return trained;
}

struct Case {
  const char* name;
  core::Strategy strategy;
  core::Numerics numerics;

  friend std::ostream& operator<<(std::ostream& out, const Case& of) { return out << of.name; }
};

/// Every parameter is a bucket. "now" is used in every step, "then" in the first one only, "seldom" in every
/// third.
Script script_of(const Case& which) {
  Script script;
  script.parameters = {{"then", {300}}, {"seldom", {200}}, {"now", {100}}};
  script.steps = 7;
  script.session.training.strategy = which.strategy;
  script.session.training.numerics = which.numerics;
  script.session.training.lanes = 4;
  script.session.training.bucket_elements = 1;
  script.session.training.unused_parameters = core::UnusedParameters::zeros;
  script.session.training.optimizer.kind = core::OptimizerKind::sgd;
  script.session.training.optimizer.weight_decay = 0;
  script.uses = [](const GradientPlace& place) {
    const auto step = place.step.value;
    return place.parameter == 2 || step == 0 || (place.parameter == 1 && step % 3 == 0) ? 1 : 0;
  };
  // Sums of few bits, so that any order of them is exact.
  script.gradient = [](const GradientPlace& place) {
    return static_cast<float>(1 + place.lane.value + 2 * place.step.value + place.element % 4);
  };
  return script;
}

class UnreadBucket : public testing::TestWithParam<Case> {
 protected:
  /// By the loop over plain numbers, in which what is not used has no gradient.
  void expect_values(const SimulationOptions& simulation, const Script& job, const Values& expected,
                     bool saves) {
    const auto outcome =
        simulate_job<Trained>(simulation, [&](SimulatedRank& rank) { return train(rank, job, saves); });
    ASSERT_EQ(problems_of(outcome.report), "") << "seed " << simulation.seed;
    for (const auto& rank : outcome.ranks) {
      ASSERT_EQ(rank.values, expected) << "seed " << simulation.seed;
      ASSERT_EQ(rank.saves.size(), saves ? static_cast<std::size_t>(job.steps) : 0);
      for (const auto& save : rank.saves) ASSERT_TRUE(save.committed) << save.committed.error().message;
    }
  }

  Script script = script_of(GetParam());
};

SimulationOptions two_ranks(std::uint64_t seed) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  simulation.seed = seed;
  // The update of a bucket takes longer than a step that does not read it.
  simulation.device.bytes_per_second = 5e6;
  return simulation;
}

TEST_P(UnreadBucket, IsReducedOnlyAfterTheUpdateClearedItsGradients) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    expect_values(two_ranks(seed), script, expected_values(script), false);
}

TEST_P(UnreadBucket, IsReducedOnlyAfterRefusalsClearedItsGradients) {
  auto without = script;
  script.refusal = [](core::Rank rank, core::Step step) {
    return std::string(rank.value == 1 && step.value == 3 ? "the data ran out" : "");
  };
  without.gradient = [all = script.gradient](const GradientPlace& place) {
    return place.step.value == 3 ? 0.0F : all(place);
  };

  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    expect_values(two_ranks(seed), script, expected_values(without), false);
}

TEST_P(UnreadBucket, MissesNoUpdateWhileASaveHoldsIt) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SimulatedStorage disk({});
    auto simulation = two_ranks(seed);
    simulation.storage = &disk;
    simulation.io_delay = std::chrono::milliseconds(20);
    script.session.checkpoint.staging_bytes = 512;
    script.session.checkpoint.chunk_bytes = 256;

    expect_values(simulation, script, expected_values(script), true);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, UnreadBucket,
                         testing::Values(Case{"ddp_fast", core::Strategy::ddp, core::Numerics::fast},
                                         Case{"ddp_ordered", core::Strategy::ddp, core::Numerics::ordered},
                                         Case{"zero1_fast", core::Strategy::zero1, core::Numerics::fast},
                                         Case{"zero1_ordered", core::Strategy::zero1,
                                              core::Numerics::ordered}),
                         testing::PrintToStringParamName());

/// Neither forward nor backward acquires a unit that the lane does not use.
core::Result<void> play_used_units(Session& session, const Script& script, core::Lane lane,
                                   SimulatedRank& rank) {
  const auto uses = [&](std::uint32_t p) { return script.uses({session.next_step(), lane, 0, p, 0}) > 0; };
  TRY(session.begin_lane(lane));
  for (std::uint32_t p = 0; p < script.parameters.size(); ++p) {
    if (uses(p)) TRY(session.before_use({p}));
  }
  TRY(session.begin_backward());
  for (auto p = static_cast<std::uint32_t>(script.parameters.size()); p-- > 0;) {
    if (!uses(p)) continue;
    TRY(session.before_use({p}));
    rank.compute(script.backward_time);
    GradientPlace place{session.next_step(), lane, 0, p, 0};
    const auto gradient = TRY(session.gradient({p}));
    for (; place.element < gradient.size(); ++place.element)
      gradient[place.element] += script.gradient(place);
    TRY(session.gradient_ready({p}));
  }
  return session.end_lane(0);
}

core::Result<Values> train_units(SimulatedRank& rank, const Script& script) {
  auto session = TRY(Session::join(rank, script.session, script.parameters));
  for (std::int64_t step = 0; step < script.steps; ++step) {
    TRY(session->begin_step(script.learning_rate));
    for (core::Lane lane : session->lanes()) TRY(play_used_units(*session, script, lane, rank));
    TRY(session->finish_step());
  }
  Values values;
  TRY(session->begin_evaluation());
  for (std::uint32_t p = 0; p < script.parameters.size(); ++p) {
    TRY(session->before_use({p}));
    const auto held = TRY(session->parameter({p}));
    values.emplace_back(held.begin(), held.end());
  }
  TRY(session->end_evaluation());
  TRY(session->leave());
  return values;
}

/// Which of seven units are used, in lane and step.
struct UsedUnits {
  const char* name;
  bool (*are)(std::uint32_t unit, std::int64_t lane, std::int64_t step);

  friend std::ostream& operator<<(std::ostream& out, const UsedUnits& of) { return out << of.name; }
};

using UnitCase = std::tuple<core::Strategy, core::Numerics, int, bool, UsedUnits>;

class UnusedUnit : public testing::TestWithParam<UnitCase> {};

/// A slot of the pool of gradients that an unused unit has in its turn stays its own until it is reduced.
// Covers beyond-7.
TEST_P(UnusedUnit, TakesNoGradientsOfOtherUnitsOfItsSlot) {
  const auto& [strategy, numerics, gathered_units, overlap, used] = GetParam();
  Script script;
  // Units of one size, and one that is larger, so that the zeros of one do not clear all of another.
  for (std::uint32_t p = 0; p < 7; ++p) {
    script.parameters.push_back({fmt::format("unit{}", p), {p == 3 ? 120 : 80}});
    script.parameters.back().unit = core::UnitIndex{p};
  }
  script.steps = 3;
  script.session.training.strategy = strategy;
  script.session.training.numerics = numerics;
  const bool has_copies = strategy == core::Strategy::hsdp;
  const int ranks = has_copies ? 4 : 2;
  script.session.training.optimizer_instances = has_copies ? 2 : 1;
  script.session.training.lanes = 2 * ranks;
  script.session.training.gathered_units = gathered_units;
  script.session.training.overlap = overlap;
  script.session.training.unused_parameters = core::UnusedParameters::zeros;
  script.session.training.optimizer.kind = core::OptimizerKind::sgd;
  script.session.training.optimizer.weight_decay = 0;
  script.uses = [are = used.are](const GradientPlace& place) {
    return are(place.parameter, place.lane.value, place.step.value) ? 1 : 0;
  };
  // Sums of few bits, so that any order of them is exact.
  script.gradient = [](const GradientPlace& place) {
    return static_cast<float>(1 + place.lane.value + 2 * place.step.value + 16 * (place.parameter + 1));
  };
  const auto expected = expected_values(script);

  for (const auto latency : {1, 100, 1000}) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      SimulationOptions simulation;
      simulation.ranks = {ranks};
      simulation.seed = seed;
      simulation.fabric.latency = std::chrono::microseconds(latency);
      simulation.device.bytes_per_second = 1e7;
      script.backward_time = std::chrono::microseconds(30);

      const auto outcome =
          simulate_job<Values>(simulation, [&](SimulatedRank& rank) { return train_units(rank, script); });

      ASSERT_EQ(problems_of(outcome.report), "") << latency << " us, seed " << seed;
      for (const auto& values : outcome.ranks) ASSERT_EQ(values, expected) << latency << " us, seed " << seed;
    }
  }
}

constexpr UsedUnits kUsedUnits[] = {
    {"between", [](std::uint32_t unit, std::int64_t, std::int64_t) { return unit != 3; }},
    {"several", [](std::uint32_t unit, std::int64_t, std::int64_t) { return unit < 1 || unit > 4; }},
    {"first", [](std::uint32_t unit, std::int64_t, std::int64_t) { return unit > 1; }},
    {"last", [](std::uint32_t unit, std::int64_t, std::int64_t) { return unit < 5; }},
    {"some",
     [](std::uint32_t unit, std::int64_t lane, std::int64_t step) { return (unit + lane + step) % 3 != 0; }},
};

std::string name_of(const testing::TestParamInfo<UnitCase>& of) {
  const auto& [strategy, numerics, gathered_units, overlap, used] = of.param;
  return fmt::format("{}_{}_{}_{}_{}", core::name_of(strategy), core::name_of(numerics), gathered_units,
                     overlap ? "overlapped" : "apart", used.name);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, UnusedUnit,
    testing::Combine(testing::Values(core::Strategy::zero2, core::Strategy::zero3, core::Strategy::hsdp),
                     testing::Values(core::Numerics::fast, core::Numerics::ordered), testing::Values(1, 2),
                     testing::Bool(), testing::ValuesIn(kUsedUnits)),
    name_of);

}  // namespace
}  // namespace troupe::actors
