#pragma once

#include <chrono>
#include <functional>

namespace troupe::gpu {

/// Virtual time as the simulated devices see it. The simulator implements it; everything runs in one thread.
class Timeline {
 public:
  virtual ~Timeline() = default;
  virtual std::chrono::nanoseconds now() const = 0;
  /// Runs `action` at now() + delay. Actions of equal time run in an order the implementation picks from its
  /// seed, or in the order of scheduling.
  virtual void after(std::chrono::nanoseconds delay, std::function<void()> action) = 0;
};

}  // namespace troupe::gpu
