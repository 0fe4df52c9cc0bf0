#include <fmt/format.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "actors/world/random.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

constexpr std::uint64_t kDraws = 300;

/// A job of which nothing but the number of ranks and how they share the work is undecided.
TinyTrainerOptions draw_model(RandomStream& draw) {
  TinyTrainerOptions options;
  options.seed = draw.bits();
  options.steps = 1 + draw.below(3);
  options.layers = 1 + static_cast<int>(draw.below(6));
  options.rows = draw.below(4);
  options.width = (1 + draw.below(20)) * std::max<std::int64_t>(options.rows, 1);
  auto& training = options.session.training;
  training.lanes = 1 + static_cast<int>(draw.below(12));
  training.microbatches = 1 + static_cast<int>(draw.below(4));
  training.average = draw.below(4) != 0;
  training.clip_norm = draw.below(2) == 0 ? 0 : 0.5;
  training.optimizer.kind = static_cast<core::OptimizerKind>(draw.below(4));
  if (options.rows > 0 && draw.below(3) == 0) {
    options.bias_group = 1;
    training.groups = {{1, {.kind = core::OptimizerKind::muon}}, {1, training.optimizer}};
  }
  training.optimizer.momentum = draw.below(2) == 0 ? 0 : 0.9;
  return options;
}

/// Devices and networks of which now the one is slow and now the other.
SimulationOptions draw_machines(RandomStream& draw, int ranks) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = draw.bits();
  simulation.device.bytes_per_second = draw.below(2) == 0 ? 1e12 : 1e7;
  simulation.device.task_latency = std::chrono::nanoseconds(draw.below(10'000));
  simulation.fabric.bytes_per_second = draw.below(2) == 0 ? 1e10 : 1e8;
  simulation.fabric.latency = std::chrono::nanoseconds(draw.below(30'000));
  return simulation;
}

/// Returns the number of ranks.
int draw_distribution(RandomStream& draw, TinyTrainerOptions& options) {
  auto& training = options.session.training;
  int ranks = 1 + static_cast<int>(draw.below(static_cast<std::uint32_t>(std::min(training.lanes, 6))));
  set_strategy(training, strategy_in_turn(ranks, draw.bits()));
  training.overlap = draw.below(4) != 0;
  training.bucket_elements = 1 + draw.below(200);
  training.unused_parameters =
      draw.below(2) == 0 ? core::UnusedParameters::refuse : core::UnusedParameters::zeros;
  bool has_copies = training.strategy == core::Strategy::zero1 && ranks % 2 == 0 && draw.below(2) == 0;
  if (has_copies) training.optimizer_instances = 2;
  options.layer_time = std::chrono::microseconds(draw.below(100));
  return ranks;
}

TEST(Swarm, EveryDistributionHasOneUnshardedRanksBits) {
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    RandomStream draw(seed, "swarm_test", "options");
    auto options = draw_model(draw);
    auto alone = options;
    alone.session.training.strategy = core::Strategy::ddp;
    alone.session.training.overlap = false;
    const int ranks = draw_distribution(draw, options);
    if (has_units(options.session.training.strategy))
      options.session.training.microbatches = alone.session.training.microbatches = 1;

    auto reference = simulate_tiny(1, 0, alone);
    auto outcome = simulate_tiny(draw_machines(draw, ranks), options);

    const auto label = fmt::format("draw {}: {} ranks", seed, ranks);
    ASSERT_EQ(problems_of(reference.report) + problems_of(outcome.report), "") << label;
    for (const auto& rank : outcome.ranks) {
      ASSERT_EQ(rank.state_hash, reference.ranks[0].state_hash) << label;
      for (std::size_t step = 0; step < rank.outcomes.size(); ++step) {
        ASSERT_EQ(rank.outcomes[step].loss, reference.ranks[0].outcomes[step].loss) << label;
        ASSERT_EQ(rank.outcomes[step].gradient_norm, reference.ranks[0].outcomes[step].gradient_norm)
            << label;
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors
