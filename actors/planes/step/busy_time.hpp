#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>

namespace troupe::actors {

/// How long at least one of several activities was running; overlapping ones count once. Times come from one
/// clock that does not go back. Thread safe.
class BusyTime {
 public:
  void begin(std::chrono::nanoseconds now) {
    std::lock_guard lock(mutex_);
    if (running_++ == 0) since_ = now;
  }
  void end(std::chrono::nanoseconds now) {
    std::lock_guard lock(mutex_);
    if (--running_ == 0) over_ += now - since_;
  }
  /// Up to `now`.
  std::chrono::nanoseconds total(std::chrono::nanoseconds now) const {
    std::lock_guard lock(mutex_);
    // `now` may have been read before the running activity began.
    return over_ + (running_ > 0 ? std::max(now - since_, std::chrono::nanoseconds::zero())
                                 : std::chrono::nanoseconds::zero());
  }

 private:
  mutable std::mutex mutex_;  // guards all below
  int running_ = 0;
  std::chrono::nanoseconds since_{};
  std::chrono::nanoseconds over_{};
};

}  // namespace troupe::actors
