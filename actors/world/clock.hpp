#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace troupe::actors {

/// Names an alarm of a Clock; never reused. 0 names none.
using AlarmId = std::uint64_t;

/// The only source of time for actors. Time counts from an arbitrary origin and never goes back.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual std::chrono::nanoseconds now() const = 0;
  /// Runs `callback` once at now() + delay, on the clock's own thread (in simulation in the event loop). It
  /// must not block.
  virtual AlarmId arm(std::chrono::nanoseconds delay, std::function<void()> callback) = 0;
  /// The callback will not start after this returns, but may still be running on the clock's thread. Ignored
  /// for an alarm that has already run, and for 0.
  virtual void cancel(AlarmId id) = 0;
};

}  // namespace troupe::actors
