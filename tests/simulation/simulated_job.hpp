#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "actors/simulation/tiny_trainer.hpp"
#include "core/errors.hpp"
#include "tests/support/printing.hpp"

namespace troupe::actors {

/// What a simulated job left behind: the report, and a Value of every rank whose trainer ended well.
template <class Value>
struct JobOutcome {
  SimulationReport report;
  std::vector<Value> ranks;
};

/// Runs `train` as the trainer of every rank.
template <class Value>
JobOutcome<Value> simulate_job(SimulationOptions options,
                               const std::function<core::Result<Value>(SimulatedRank&)>& train) {
  JobOutcome<Value> outcome;
  outcome.ranks.resize(static_cast<std::size_t>(options.ranks.value));
  Simulation job(std::move(options));
  outcome.report = job.run([&](SimulatedRank& rank) -> core::Result<void> {
    outcome.ranks[static_cast<std::size_t>(rank.rank().value)] = TRY(train(rank));
    return {};
  });
  return outcome;
}

inline JobOutcome<TinyTrainerResult> simulate_tiny(const SimulationOptions& simulation,
                                                   const TinyTrainerOptions& options) {
  return simulate_job<TinyTrainerResult>(
      simulation, [&](SimulatedRank& rank) { return simulate_tiny_rank(rank, options); });
}

inline JobOutcome<TinyTrainerResult> simulate_tiny(int ranks, std::uint64_t seed,
                                                   const TinyTrainerOptions& options,
                                                   std::vector<SimulatedFault> faults = {}) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = seed;
  simulation.faults = std::move(faults);
  return simulate_tiny(simulation, options);
}

inline std::string violations_of(const SimulationReport& report) {
  std::string text;
  for (const auto& violation : report.violations) text += violation + "\n";
  return text;
}

/// Violations and the errors of trainers; empty when all went well.
inline std::string problems_of(const SimulationReport& report) {
  std::string text = violations_of(report);
  for (const auto& result : report.results) {
    if (!result) text += result.error().message + "\n";
  }
  return text;
}

/// Those that this many ranks can play: what hsdp and hfsdp shard has two copies here.
inline std::vector<core::Strategy> strategies_for(int ranks) {
  std::vector<core::Strategy> strategies{core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero2,
                                         core::Strategy::zero3};
  if (ranks % 2 == 0) strategies.insert(strategies.end(), {core::Strategy::hsdp, core::Strategy::hfsdp});
  return strategies;
}

/// One of strategies_for(ranks); numbers that follow each other give all in turn.
inline core::Strategy strategy_in_turn(int ranks, std::uint64_t number) {
  const auto strategies = strategies_for(ranks);
  return strategies[number % strategies.size()];
}

/// A strategy, in stages, and with biases that ranks share as experts.
struct TinyMesh {
  // NOLINTNEXTLINE(google-explicit-constructor): a strategy alone is a mesh of data-parallel ranks.
  TinyMesh(core::Strategy of, int stage_count = 1, int expert_ranks = 1)
      : strategy(of), stages(stage_count), experts(expert_ranks) {}

  core::Strategy strategy;
  int stages;
  int experts;

  bool is_data_parallel() const { return stages == 1 && experts == 1; }
  std::string name() const {
    return fmt::format("{}{}{}", core::name_of(strategy),
                       stages > 1 ? fmt::format(" in {} stages", stages) : "",
                       experts > 1 ? fmt::format(" with experts over {}", experts) : "");
  }
};

/// Those that this many ranks can play with a model of so many layers: all strategies, alone, in stages, and
/// with experts.
inline std::vector<TinyMesh> meshes_for(int ranks, int layers = 4) {
  std::vector<TinyMesh> meshes;
  for (const auto strategy : strategies_for(ranks)) meshes.emplace_back(strategy);
  for (const int parts : {2, 3}) {
    if (ranks % parts != 0 || layers % parts != 0) continue;
    for (const auto strategy : strategies_for(ranks / parts)) {
      meshes.emplace_back(strategy, parts, 1);
      if (parts == 2) meshes.emplace_back(strategy, 1, parts);
    }
    if (ranks % 4 == 0 && layers % 4 == 0) meshes.emplace_back(core::Strategy::zero3, parts, parts);
  }
  return meshes;
}

/// One of meshes_for(); numbers that follow each other give all in turn.
inline TinyMesh mesh_in_turn(int ranks, std::uint64_t number, int layers = 4) {
  const auto meshes = meshes_for(ranks, layers);
  return meshes[number % meshes.size()];
}

/// Whether gradients are reduced in every round, so that a lane is one microbatch.
inline bool has_units(core::Strategy strategy) {
  return strategy != core::Strategy::ddp && strategy != core::Strategy::zero1;
}

inline void set_strategy(core::TrainingOptions& training, core::Strategy strategy) {
  training.strategy = strategy;
  const bool has_copies = strategy == core::Strategy::hsdp || strategy == core::Strategy::hfsdp;
  training.optimizer_instances = has_copies ? 2 : 1;
}

inline void set_mesh(core::TrainingOptions& training, const TinyMesh& mesh) {
  set_strategy(training, mesh.strategy);
  training.pipeline_parallel = mesh.stages;
  training.expert_parallel = mesh.experts;
}

/// A job of several buckets, so that launches may pass each other.
inline TinyTrainerOptions tiny_job(const TinyMesh& mesh, bool overlap = true, int microbatches = 1) {
  TinyTrainerOptions options;
  set_mesh(options.session.training, mesh);
  options.session.training.overlap = overlap;
  options.session.training.microbatches = microbatches;
  options.session.training.lanes = 8;
  options.session.training.bucket_elements = 40;
  options.session.training.clip_norm = 1.0;
  return options;
}

}  // namespace troupe::actors
