#pragma once

#include <chrono>
#include <functional>

namespace troupe::gpu {

/// Virtual time for the simulated devices. The simulator implements it; everything runs in one thread.
class Timeline {
 public:
  virtual ~Timeline() = default;
  virtual std::chrono::nanoseconds now() const = 0;
  /// Runs `action` at now() + delay. The order of actions at equal times is picked by the implementation from
  /// its seed, or is the order of scheduling.
  virtual void after(std::chrono::nanoseconds delay, std::function<void()> action) = 0;
};

}  // namespace troupe::gpu
