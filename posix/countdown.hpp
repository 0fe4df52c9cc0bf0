#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace troupe::posix {

/// A limit of the time in which this process runs. A job that is stopped as a whole, or whose hosts are
/// suspended, hears nobody meanwhile, and may blame nobody for it when it goes on. It shows by a look that is
/// late, so that one has to look every kLook. Not thread-safe.
class Countdown {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(500);
  /// A process that has not looked for so long did not run.
  static constexpr std::chrono::nanoseconds kLatest = std::chrono::seconds(2);

  explicit Countdown(std::chrono::nanoseconds limit, Clock::time_point now = Clock::now())
      : left_(limit), seen_(now) {}

  /// What is left, at least zero.
  std::chrono::nanoseconds left(Clock::time_point now = Clock::now()) {
    const auto passed = now - std::exchange(seen_, now);
    left_ -= passed > kLatest ? kLook : passed;
    return left_ = std::max(left_, std::chrono::nanoseconds::zero());
  }

  /// What is left, for a wait before the next look.
  std::chrono::nanoseconds next_wait(Clock::time_point now = Clock::now()) {
    return std::min(left(now), kLook);
  }

 private:
  std::chrono::nanoseconds left_;
  Clock::time_point seen_;
};

/// Like changed.wait_for(lock, limit, ready), with a Countdown.
template <class Ready>
bool wait_while_running(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                        std::chrono::nanoseconds limit, const Ready& ready) {
  for (Countdown countdown(limit); !ready();) {
    const auto wait = countdown.next_wait();
    if (wait == std::chrono::nanoseconds::zero()) return false;
    changed.wait_for(lock, wait);
  }
  return true;
}

}  // namespace troupe::posix
