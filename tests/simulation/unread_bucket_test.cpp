#include <gtest/gtest.h>

#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::actors {
namespace {

/// Of each rank, at the end.
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

TEST_P(UnreadBucket, IsReducedOnlyAfterTheUpdateBeforeHasClearedItsGradients) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    expect_values(two_ranks(seed), script, expected_values(script), false);
}

TEST_P(UnreadBucket, IsReducedOnlyAfterARefusedStepHasClearedItsGradients) {
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

}  // namespace
}  // namespace troupe::actors
