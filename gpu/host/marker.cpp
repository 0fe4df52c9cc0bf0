#include "gpu/host/marker.hpp"

#include "core/errors.hpp"
#include "posix/countdown.hpp"

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
  std::unique_lock lock(mutex_);
  return posix::wait_while_running(changed_, lock, deadline, [this] { return is_reached(); });
}

}  // namespace troupe::gpu
