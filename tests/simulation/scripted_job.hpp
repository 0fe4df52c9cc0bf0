#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {

/// Where a gradient belongs.
struct GradientPlace {
  core::Step step;
  core::Lane lane;
  int microbatch = 0;
  std::uint32_t parameter = 0;
  std::size_t element = 0;
  int piece = 0;  ///< of the lane, with several TrainingOptions::pieces_of_lane()
};

/// A job whose parameters and gradients the test writes. The loss of a piece of a lane is the lane's number
/// and a hundred times that of the piece.
struct Script {
  std::vector<core::ParameterSpec> parameters;
  SessionOptions session;
  std::int64_t steps = 1;
  double learning_rate = 1;
  std::function<double(core::Rank, core::Step)> rate;  ///< instead of learning_rate, if there is one
  std::function<float(std::uint32_t parameter, std::size_t element)> initial = [](auto, auto) {
    return 0.0F;
  };
  std::function<float(const GradientPlace&)> gradient = [](const auto&) { return 1.0F; };
  /// How often the parameter's gradient comes in this lane and microbatch; each time a whole one.
  std::function<int(const GradientPlace&)> uses = [](const auto&) { return 1; };
  std::chrono::nanoseconds backward_time{};  ///< of each parameter, before each of its gradients
  std::function<std::string(core::Rank, core::Step)> refusal = [](auto, auto) { return std::string(); };
  std::int64_t save_after = 0;  ///< steps; 0: nothing is saved
  bool restore = false;         ///< begin with the newest checkpoint, which there is
  int losses_too_many = 0;      ///< that are given for each lane; -1: one is missing
  /// By parameter, what the checkpoint after `save_after` steps says of the optimizer's steps; empty: none.
  std::vector<std::int64_t> steps_missed;
};

using Values = std::vector<std::vector<float>>;  ///< of all parameters

struct ScriptResult {
  std::vector<StepOutcome> outcomes;
  std::vector<Values> after;        ///< each step
  std::vector<double> loss_scales;  ///< of each step
  std::vector<core::TraceEvent> trace;
  std::size_t device_bytes = 0;
};

JobOutcome<ScriptResult> simulate_script(SimulationOptions simulation, const Script& script);
JobOutcome<ScriptResult> simulate_script(int ranks, const Script& script, std::uint64_t seed = 1);

/// A value of `dtype` nearest to `value`.
float rounded(core::DType dtype, float value);

/// What the job must come to, computed by one loop over plain numbers: lanes one after another, each rounded
/// to the wire's dtype, the tree over the lanes of each piece and that over pieces by their definition, then
/// the optimizer's formulas. Without clipping and refusals; steps with gradients that are NaN or Inf do not
/// count.
Values expected_values(const Script& script);

}  // namespace troupe::actors
