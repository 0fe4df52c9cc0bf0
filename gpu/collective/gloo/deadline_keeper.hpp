#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "posix/countdown.hpp"

namespace troupe::gpu {

/// Watches the limits of waits, with a Countdown each: those of Gloo count the time in which this process is
/// stopped. Thread-safe, with a thread of its own.
class DeadlineKeeper {
  struct Entry {
    posix::Countdown left;
    std::function<void()> on_over;  ///< empty: it was called
  };

 public:
  DeadlineKeeper();
  ~DeadlineKeeper();
  DeadlineKeeper(const DeadlineKeeper&) = delete;
  DeadlineKeeper& operator=(const DeadlineKeeper&) = delete;

  /// A limit, which is watched as long as this lives.
  class Watch {
   public:
    /// `on_over` is called in the keeper's thread, at most once. It must not make or destroy a Watch.
    Watch(DeadlineKeeper& keeper, std::chrono::nanoseconds limit, std::function<void()> on_over);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    DeadlineKeeper& keeper_;
    std::list<Entry>::iterator entry_;
  };

  /// For how long this process did not run just before now: peers that have waited for it are not to blame.
  std::chrono::nanoseconds absence();

 private:
  void work();
  void look(posix::Countdown::Clock::time_point now);

  std::mutex mutex_;  // guards everything below except the thread
  std::condition_variable changed_;
  std::list<Entry> entries_;
  posix::Countdown::Clock::time_point next_look_ = posix::Countdown::Clock::now();
  std::chrono::nanoseconds absence_{};  ///< the last one
  posix::Countdown::Clock::time_point back_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe::gpu
