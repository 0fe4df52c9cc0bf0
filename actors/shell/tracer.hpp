#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.hpp"
#include "core/trace.hpp"

namespace troupe::actors {

/// Collects the trace events of one rank; thread safe. When it is full, later events are counted and dropped.
class Tracer {
 public:
  using Now = std::function<std::chrono::nanoseconds()>;

  explicit Tracer(Now now, std::size_t capacity = 1 << 20) : now_(std::move(now)), capacity_(capacity) {}

  std::chrono::nanoseconds now() const { return now_(); }

  void add(core::TraceEvent event) {
    if (stopped_.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(mutex_);
    if (events_.size() < capacity_) {
      events_.push_back(std::move(event));
    } else {
      dropped_ += 1;
    }
  }

  /// Later events are not recorded.
  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  std::vector<core::TraceEvent> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

  std::uint64_t dropped() const {
    std::lock_guard lock(mutex_);
    return dropped_;
  }

 private:
  Now now_;
  std::size_t capacity_;
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;  // guards events_ and dropped_
  std::vector<core::TraceEvent> events_;
  std::uint64_t dropped_ = 0;
};

/// The flow that connects a bucket's gradient, launch, optimizer step and gather of one step across tracks.
/// Never 0.
inline std::uint64_t bucket_flow(core::Step step, core::BucketIndex bucket) {
  return (static_cast<std::uint64_t>(step.value) << 20 | bucket.value) + 1;
}

}  // namespace troupe::actors
