#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "gpu/simulated/timeline.hpp"

namespace troupe::gpu {

/// Virtual time which a test moves by hand. Actions of equal time run in the order of scheduling.
class ManualTimeline final : public Timeline {
 public:
  std::chrono::nanoseconds now() const override { return now_; }

  void after(std::chrono::nanoseconds delay, std::function<void()> action) override {
    pending_.push({now_ + delay, next_serial_++, std::move(action)});
  }

  /// Runs the next action. False when there is none.
  bool step() {
    if (pending_.empty()) return false;
    Pending next = pending_.top();
    pending_.pop();
    now_ = next.time;
    next.action();
    return true;
  }

  void run_until_idle() {
    while (step()) {
    }
  }

  /// Runs everything due until `time`, and then it is `time`.
  void run_until(std::chrono::nanoseconds time) {
    while (!pending_.empty() && pending_.top().time <= time) step();
    now_ = time;
  }

 private:
  struct Pending {
    std::chrono::nanoseconds time;
    std::uint64_t serial;
    std::function<void()> action;

    friend bool operator<(const Pending& a, const Pending& b) {
      return std::pair(b.time, b.serial) < std::pair(a.time, a.serial);
    }
  };

  std::chrono::nanoseconds now_{};
  std::uint64_t next_serial_ = 0;
  std::priority_queue<Pending> pending_;
};

}  // namespace troupe::gpu
