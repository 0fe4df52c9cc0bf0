#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "gpu/collective/blocking_group.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Lets one member's operations through one at a time, in posting order, whatever streams they are on.
/// Thread-safe.
class Turnstile {
 public:
  using Ticket = std::uint64_t;

  Ticket take() {
    std::lock_guard lock(mutex_);
    return taken_++;
  }

  /// Blocks until every earlier ticket has passed. False if the deadline came first, or if `is_over`, called
  /// every few milliseconds, returns true.
  bool wait(Ticket ticket, const OperationDeadline& deadline, const std::function<bool()>& is_over) {
    std::unique_lock lock(mutex_);
    while (passed_ != ticket) {
      if (is_over() || deadline.left() == std::chrono::nanoseconds::zero()) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(4));
    }
    return true;
  }

  void pass() {
    {
      std::lock_guard lock(mutex_);
      ++passed_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards taken_ and passed_
  std::condition_variable changed_;
  Ticket taken_ = 0;
  Ticket passed_ = 0;
};

/// The order of one member's operations: collectives one after another, and also the messages to each
/// other member and those from it.
class Turnstiles {
 public:
  explicit Turnstiles(int size) : sends_(static_cast<std::size_t>(size)), receives_(sends_.size()) {}

  Turnstile& of(const Operation& operation) {
    const auto peer = static_cast<std::size_t>(operation.peer);
    if (operation.kind == OperationKind::send) return sends_[peer];
    if (operation.kind == OperationKind::receive) return receives_[peer];
    return collectives_;
  }

 private:
  Turnstile collectives_;
  std::vector<Turnstile> sends_;
  std::vector<Turnstile> receives_;
};

}  // namespace troupe::gpu
