#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/session/outcomes.hpp"
#include "core/ids.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// How long this rank computes for a lane, which it tells now and then. Used by the trainer's thread.
class Pace {
 public:
  /// Times are told at most once in each interval, and for at least kLeastSteps.
  static constexpr int kLeastSteps = 8;
  explicit Pace(std::chrono::nanoseconds interval) : interval_(interval) {}

  /// The trainer begins a step, having prepared it since the last one ended. By the device's clock.
  void step_begins(std::chrono::nanoseconds now);
  /// What to tell, if it is time to.
  std::optional<messages::StepsTimed> step_over(std::chrono::nanoseconds now, core::Rank rank,
                                                const StepTimes& times, int lanes);

 private:
  std::chrono::nanoseconds interval_;
  std::optional<std::chrono::nanoseconds> last_over_;
  std::chrono::nanoseconds last_told_{};
  std::chrono::nanoseconds prepares_{};  ///< for the step, before it began
  // Since the last time, per lane. A rank that now and then saves or evaluates between steps is not slow, but
  // one is that now and then computes for long.
  std::chrono::nanoseconds computed_{};
  std::chrono::nanoseconds taken_{};
  // In the steps whose run delay was looked at.
  std::chrono::nanoseconds looked_at_{};
  std::chrono::nanoseconds run_delay_{};
  std::vector<std::chrono::nanoseconds> prepared_;
};

}  // namespace troupe::actors
