#include <gtest/gtest.h>

#include <vector>

#include "core/optimizer/large_gradients.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

/// One element whose gradient is 1, and 30 in the step after the samples; a scale on top changes nothing.
core::Result<std::vector<double>> usual_norms(SimulatedRank& rank, double factor, double loss_scale) {
  SessionOptions options;
  auto& training = options.training;
  training.strategy = core::Strategy::ddp;
  training.large_gradient_factor = factor;
  if (loss_scale != 1) training.loss_scaling = {.kind = core::LossScale::fixed, .scale = loss_scale};
  auto session = TRY(Session::join(rank, options, {{"w", {1}}}));
  std::vector<double> usual;
  for (int step = 0; step < core::LargeGradients::kSamples + 2; ++step) {
    const bool is_spike = step == core::LargeGradients::kSamples;
    TRY(session->begin_step(0.001));
    for (const core::Lane lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      TRY(session->before_use({0}));
      TRY(session->gradient({0}))[0] += static_cast<float>((is_spike ? 30 : 1) * loss_scale);
      TRY(session->gradient_ready({0}));
      TRY(session->end_lane(0));
    }
    const auto outcome = TRY(session->finish_step());
    EXPECT_TRUE(outcome.committed) << "it is a warning";
    EXPECT_EQ(outcome.usual_norm > 0, is_spike && factor > 0 && factor < 30) << step;
    usual.push_back(outcome.usual_norm);
  }
  TRY(session->leave());
  return usual;
}

// Covers finish-17.
TEST(LargeGradients, AreFoundByAllRanksAndTheStepCommits) {
  for (const double loss_scale : {1.0, 1024.0}) {
    SimulationOptions simulation;
    simulation.ranks = {2};
    simulation.seed = 5;
    const auto outcome = simulate_job<std::vector<double>>(
        simulation, [=](SimulatedRank& rank) { return usual_norms(rank, 10, loss_scale); });

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& usual : outcome.ranks) EXPECT_EQ(usual[core::LargeGradients::kSamples], 1.0);
  }
}

TEST(LargeGradients, AreNotSoughtWithoutAFactorNorBelowIt) {
  for (const double factor : {0.0, 31.0}) {
    SimulationOptions simulation;
    simulation.ranks = {1};
    simulation.seed = 5;
    const auto outcome = simulate_job<std::vector<double>>(
        simulation, [=](SimulatedRank& rank) { return usual_norms(rank, factor, 1); });

    ASSERT_EQ(problems_of(outcome.report), "");
    EXPECT_EQ(outcome.ranks[0][core::LargeGradients::kSamples], 0.0) << factor;
  }
}

}  // namespace
}  // namespace troupe::actors
