#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "actors/session/outcomes.hpp"
#include "actors/shell/tracer.hpp"
#include "core/ids.hpp"
#include "core/list.hpp"
#include "core/profiler.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

/// Measures the trainer's steps: where their time goes, and how long a bucket's launch takes after its last
/// gradient. Also reports about the trainer to tracers and profilers. Used by the trainer's thread.
class StepMeter {
 public:
  /// `tracer` may be null; everything given must outlive it.
  StepMeter(gpu::Device& device, DataPlane& data, std::uint32_t buckets, Tracer* tracer);
  ~StepMeter();
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  void begin_step(core::Step step);
  /// The time that the trainer waits in `wait` is exposed, except while it is still computing.
  core::Result<void> exposed(const std::function<core::Result<void>()>& wait);
  /// The trainer has said that a gradient of the bucket is ready.
  void gradient_ready(core::BucketIndex bucket, const std::string& parameter);
  StepTimes end_step();

  /// Microseconds from the last gradient of a bucket to its launch, for the last step's buckets that no
  /// earlier launch held up.
  const std::vector<double>& launch_latencies_us() const { return launch_latencies_us_; }

 private:
  void note_latencies();
  void computing_begins();
  void computing_ends();
  void end_profile();

  gpu::Device& device_;
  DataPlane& data_;
  Tracer* tracer_;
  core::Step step_{};
  std::chrono::nanoseconds step_began_{};
  std::chrono::nanoseconds last_step_{};
  Exposure exposed_;  ///< in the step so far
  /// The thread's run delay when it last began to compute, and in this step's computing so far.
  std::optional<std::chrono::nanoseconds> run_delay_before_;
  std::chrono::nanoseconds run_delay_{};
  BusyMoment busy_before_;
  core::List<core::BucketIndex, std::chrono::nanoseconds>
      last_gradient_;  ///< per bucket; 0: none in this step
  std::vector<double> launch_latencies_us_;
  bool is_profiled_ = false;  ///< a profiler was told the step's beginning but not yet its end
};

}  // namespace troupe::actors
