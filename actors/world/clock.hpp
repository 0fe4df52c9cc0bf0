#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace troupe::actors {

/// Names an alarm of a Clock; never used twice. 0 names none.
using AlarmId = std::uint64_t;

/// The only source of time for actors. Time counts from any origin and never goes back.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual std::chrono::nanoseconds now() const = 0;
  /// Runs `callback` once at now() + delay, on the clock's own thread (in simulation in the event loop). It
  /// must not wait.
  virtual AlarmId arm(std::chrono::nanoseconds delay, std::function<void()> callback) = 0;
  /// The callback will not start after this returns, but may still be running on the clock's thread. An alarm
  /// that has run, or none, is ignored.
  virtual void cancel(AlarmId id) = 0;
};

}  // namespace troupe::actors
