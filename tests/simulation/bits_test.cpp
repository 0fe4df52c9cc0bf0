#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "actors/simulation/tiny_trainer.hpp"

namespace troupe::actors {
namespace {

struct Outcome {
  SimulationReport report;
  std::vector<TinyTrainerResult> ranks;
};

Outcome simulate(int ranks, std::uint64_t seed, const TinyTrainerOptions& options,
                 std::vector<SimulatedFault> faults = {}) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = seed;
  simulation.faults = std::move(faults);
  Outcome outcome;
  outcome.ranks.resize(static_cast<std::size_t>(ranks));
  Simulation job(simulation);
  outcome.report = job.run([&](SimulatedRank& rank) -> core::Result<void> {
    outcome.ranks[static_cast<std::size_t>(rank.rank().value)] =
        TRY(train_tiny(rank, options, [&](std::chrono::nanoseconds time) { rank.compute(time); }));
    return {};
  });
  return outcome;
}

std::string problems(const SimulationReport& report) {
  std::string text;
  for (const auto& violation : report.violations) text += violation + "\n";
  for (const auto& result : report.results) {
    if (!result) text += result.error().message + "\n";
  }
  return text;
}

TinyTrainerOptions tiny(core::Strategy strategy, bool overlap, int microbatches) {
  TinyTrainerOptions options;
  options.session.training.strategy = strategy;
  options.session.training.overlap = overlap;
  options.session.training.microbatches = microbatches;
  options.session.training.lanes = 8;
  options.session.training.bucket_elements = 40;
  options.session.training.clip_norm = 1.0;
  options.steps = 20;
  return options;
}

TEST(OrderedNumerics, GiveTheSameBitsForEveryNumberOfRanksAndStrategy) {
  for (int microbatches : {1, 4}) {
    std::optional<TinyTrainerResult> reference;
    for (int ranks : {1, 2, 3, 4, 8}) {
      for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
        for (bool overlap : {false, true}) {
          auto outcome = simulate(ranks, 7, tiny(strategy, overlap, microbatches));
          ASSERT_EQ(problems(outcome.report), "") << ranks << " ranks";
          for (const auto& rank : outcome.ranks) {
            if (!reference) reference = rank;
            ASSERT_EQ(rank.state_hash, reference->state_hash)
                << ranks << " ranks, " << (strategy == core::Strategy::ddp ? "ddp" : "zero1") << ", overlap "
                << overlap;
            ASSERT_EQ(rank.outcomes.size(), 20u);
            for (std::size_t step = 0; step < 20; ++step) {
              ASSERT_EQ(rank.outcomes[step].loss, reference->outcomes[step].loss);
              ASSERT_EQ(rank.outcomes[step].gradient_norm, reference->outcomes[step].gradient_norm);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors
