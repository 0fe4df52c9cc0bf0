#include <gtest/gtest.h>

#include <algorithm>

#include "core/errors.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

constexpr float kFirst = 8;

struct Read {
  float after_backward = 0;  ///< the parameter, in the first step
  float at_the_end = 0;
};

/// One step whose pass is only enqueued; after the last gradient it reads the parameter again, for far longer
/// than everything else takes.
core::Result<Read> train(SimulatedRank& rank, core::Strategy strategy, std::size_t element) {
  SessionOptions options;
  options.training.strategy = strategy;
  options.training.average = false;
  options.training.optimizer.kind = core::OptimizerKind::sgd;
  options.training.optimizer.weight_decay = 0;
  auto session = TRY(Session::join(rank, options, {{"w", {256}}}));
  auto compute = TRY(session->compute_stream());
  const auto values = TRY(session->parameter({0}));
  std::fill(values.begin(), values.end(), kFirst);
  Read read;
  TRY(session->begin_step(1));
  for (core::Lane lane : session->lanes()) {
    TRY(session->begin_lane(lane));
    TRY(session->before_use({0}));
    const auto gradient = TRY(session->gradient({0}));
    compute->enqueue("backward", {}, [gradient] { std::fill(gradient.begin(), gradient.end(), 1.0F); });
    TRY(session->gradient_ready({0}));
    const gpu::TaskCost long_time{std::uint64_t{1} << 40};
    compute->enqueue("statistics", long_time, [&] { read.after_backward = values[element]; });
    TRY(session->end_lane(0));
  }
  TRY(session->finish_step());
  TRY(session->publish_all());
  read.at_the_end = values[0];
  TRY(session->leave());
  return read;
}

class ComputeStream : public testing::TestWithParam<core::Strategy> {};

TEST_P(ComputeStream, ReadsParametersAfterTheLastGradientAsTheyWereInTheStep) {
  // What a rank does not own is overwritten by the gather, the rest by the optimizer.
  for (std::size_t element : {0, 255}) {
    SimulationOptions simulation;
    simulation.ranks = {2};

    const auto outcome =
        simulate_job<Read>(simulation, [&](SimulatedRank& rank) { return train(rank, GetParam(), element); });

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) {
      EXPECT_EQ(rank.after_backward, kFirst);
      EXPECT_EQ(rank.at_the_end, kFirst - 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, ComputeStream,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::actors
