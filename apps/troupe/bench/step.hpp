#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/options/options.hpp"
#include "core/plan/placement.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct StepBench {
  int ranks = 2;
  std::vector<core::Strategy> strategies{core::Strategy::zero1};
  std::string collectives = "automatic";
  core::DType dtype = core::DType::f32;  ///< of parameters
  std::optional<core::DType> gather_dtype{};
  int layers = 12;
  std::int64_t layer_elements = 262'144;
  core::TrainingOptions training{.bucket_elements = 524'288};  ///< but for strategy and overlap
  /// How long one layer's forward takes; backward takes twice as long.
  double layer_milliseconds = 1.5;
  bool busy = false;  ///< the trainer's thread computes meanwhile; otherwise it rests
  int steps = 60;
};

/// Medians over the steps after the first ten, as rank 0 sees them.
struct StepTime {
  core::Strategy strategy = core::Strategy::zero1;
  bool overlap = false;
  double step_seconds = 0;
  double compute_seconds = 0;
  double communication_seconds = 0;
  double exposed_seconds = 0;                ///< the trainer stood still for the runtime
  double exposed_communication_seconds = 0;  ///< of it, while a collective ran
  double launch_p50_microseconds = 0;        ///< from a bucket's last gradient to its launch
  double launch_p99_microseconds = 0;
  std::int64_t launches = 0;       ///< how many of them these percentiles summarise
  double messages_per_step = 0;    ///< between actors of one rank
  std::uint64_t device_bytes = 0;  ///< that rank 0 took, once and for all
  std::int64_t bytes_sent = 0;     ///< by rank 0 in a step, as its program says
};

/// Forks the ranks, so the process must not have threads yet; each strategy first without overlap,
/// then with it.
core::Result<std::vector<StepTime>> measure_steps(const StepBench& bench);

}  // namespace troupe::apps
