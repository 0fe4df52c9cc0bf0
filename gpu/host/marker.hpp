#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace troupe::gpu {

/// One point in a stream's queue, reached once: the target of a single record() of an event. Thread-safe.
class Marker {
 public:
  bool is_reached() const { return reached_.load(std::memory_order_acquire); }

  /// A second call is a programming error.
  void reach();

  void wait();
  /// False when the deadline passed first.
  bool wait_for(std::chrono::nanoseconds deadline);

 private:
  std::mutex mutex_;  // orders reach() and the waiters' last check of reached_
  std::condition_variable changed_;
  std::atomic<bool> reached_{false};
};

}  // namespace troupe::gpu
