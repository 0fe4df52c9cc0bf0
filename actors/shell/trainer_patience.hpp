#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "posix/countdown.hpp"

namespace troupe::actors {

/// How the trainer's own thread waits for messages: really, or by yielding to the simulator.
class TrainerPatience {
 public:
  virtual ~TrainerPatience() = default;
  /// Returns true once `ready()` (called with `lock` held) is true, false if `deadline` passes first.
  virtual bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
                    std::chrono::nanoseconds deadline) = 0;
  /// Something changed under the lock. From any thread, with the lock held.
  virtual void wake() = 0;
};

/// Waits on a condition variable. The time in which the process is stopped does not count.
class ThreadPatience final : public TrainerPatience {
 public:
  bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
            std::chrono::nanoseconds deadline) override {
    return posix::wait_while_running(changed_, lock, deadline, ready);
  }
  void wake() override { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace troupe::actors
