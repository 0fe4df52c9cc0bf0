#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "actors/session/outcomes.hpp"
#include "actors/shell/tracer.hpp"
#include "core/ids.hpp"
#include "core/profiler.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

/// Measures the trainer's steps: where their time goes, and how long a bucket's launch takes after its last
/// gradient. Also what tracers and profilers hear of the trainer. Used by the trainer's thread.
class StepMeter {
 public:
  /// `tracer` may be null; everything given must outlive it.
  StepMeter(gpu::Device& device, DataPlane& data, std::uint32_t buckets, Tracer* tracer);
  ~StepMeter();
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  void begin_step(core::Step step);
  /// What the trainer waits for in `wait` is exposed, as far as it computes nothing meanwhile.
  core::Result<void> exposed(const std::function<core::Result<void>()>& wait);
  /// The trainer has said that a gradient of the bucket is ready.
  void gradient_ready(core::BucketIndex bucket, const std::string& parameter);
  StepTimes end_step();

  /// Microseconds from the last gradient of a bucket to its launch, of the last step's buckets that no
  /// earlier launch held up.
  const std::vector<double>& launch_latencies_us() const { return launch_latencies_us_; }

 private:
  void note_latencies();
  void end_profile();

  gpu::Device& device_;
  DataPlane& data_;
  Tracer* tracer_;
  core::Step step_{};
  std::chrono::nanoseconds step_began_{};
  Exposure exposed_;  ///< of the step so far
  DataPlaneTimes times_before_;
  std::vector<std::chrono::nanoseconds> last_gradient_;  ///< per bucket; 0: none in this step
  std::vector<double> launch_latencies_us_;
  bool is_profiled_ = false;  ///< a profiler has heard of the step's beginning, not of its end
};

}  // namespace troupe::actors
