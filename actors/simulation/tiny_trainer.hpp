#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "actors/session/session.hpp"
#include "actors/simulation/credit_invariants.hpp"
#include "actors/simulation/simulated_rank.hpp"

namespace troupe::actors {

/// A model so small that a thousand jobs per minute can train it, yet every gradient depends on every
/// parameter of its layer, on the step, the lane and the microbatch: wrong bits anywhere spread. It is cut
/// into as many stages as core::TrainingOptions::pipeline_parallel says, and its biases are distributed as
/// experts are by expert_parallel; both must divide the layers.
struct TinyTrainerOptions {
  SessionOptions session;
  std::int64_t steps = 5;
  int layers = 4;
  std::int64_t width = 24;  ///< elements of a layer's weight; its bias has a third
  std::int64_t rows = 0;    ///< of weights that are matrices; 0: they are vectors
  /// Weights are bf16 and gathered in this dtype; empty: f32, as biases are.
  std::optional<core::DType> gather_dtype{};
  std::size_t bias_group = 0;    ///< of core::TrainingOptions::groups
  bool weighs = false;           ///< lanes, and pieces of them, have uneven weights, some of them 0
  std::uint64_t seed = 1;        ///< of values and data
  std::int64_t save_every = 0;   ///< steps; 0: never
  std::int64_t local_every = 0;  ///< steps between local saves; 0: never
  bool recovers = false;         ///< begin with what ranks have in memory, if they have all of it
  bool restore = false;          ///< otherwise with the newest checkpoint, if there is one
  std::chrono::nanoseconds layer_time = std::chrono::microseconds(50);  ///< of one forward or backward
  /// The order in which layers are used, which the session is not told but learns; empty: that of its
  /// options.
  core::DeclaredOrder learned{};
  CreditInvariants* witness = nullptr;  ///< is told where the trainer is, in a job with units
};

struct TinyTrainerResult {
  std::vector<StepOutcome> outcomes;
  std::optional<Restored> restored;
  std::vector<SaveResult> saves;
  std::vector<SaveResult> local_saves;
  std::vector<core::TraceEvent> trace;  ///< if the session traces
  std::uint64_t state_hash = 0;         ///< of all parameters at the end; the same on every rank
};

/// Where a rank is in a job that is cut.
struct TinyPlace {
  int stage = 0;
  int expert = 0;  ///< among the ranks that share the biases

  static TinyPlace of(core::Rank rank, core::WorldSize world, const core::TrainingOptions& training);
};

/// The parameters that a rank registers.
std::vector<core::ParameterSpec> tiny_parameters(const TinyTrainerOptions& options,
                                                 const TinyPlace& place = {});

/// Trains on one rank of any world. `compute` lets virtual time pass, or does nothing.
core::Result<TinyTrainerResult> train_tiny(RankWorld& world, const TinyTrainerOptions& options,
                                           const std::function<void(std::chrono::nanoseconds)>& compute);
/// The same in a simulation, whose invariants are told where the trainer is.
core::Result<TinyTrainerResult> simulate_tiny_rank(SimulatedRank& rank, TinyTrainerOptions options);

}  // namespace troupe::actors
