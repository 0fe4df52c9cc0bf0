#include "gpu/host/marker.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::gpu {

void Marker::reach() {
  // Notifying under the lock lets a waiter destroy the marker as soon as its wait returns.
  std::lock_guard lock(mutex_);
  CHECK(!is_reached(), "a task completes once");
  reached_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Marker::wait() {
  if (is_reached()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_reached(); });
}

bool Marker::wait_for(std::chrono::nanoseconds deadline) {
  if (is_reached()) return true;
  // Clocks overflow when nanoseconds::max() is added to now; a year is practically forever.
  const auto bounded = std::min<std::chrono::nanoseconds>(deadline, std::chrono::hours(24 * 365));
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, bounded, [this] { return is_reached(); });
}

}  // namespace troupe::gpu
