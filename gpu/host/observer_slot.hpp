#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "gpu/device.hpp"

namespace troupe::gpu {

/// Holds a device's task observer. Thread-safe: once set() returns, the previous observer is not running and
/// will not be called again.
class ObserverSlot {
 public:
  void set(TaskObserver observer) {
    std::unique_lock lock(mutex_);
    occupied_.store(static_cast<bool>(observer), std::memory_order_release);
    observer_ = std::move(observer);
  }

  /// A cheap check that saves an unobserved task its two clock readings.
  bool is_occupied() const { return occupied_.load(std::memory_order_acquire); }

  void report(const TaskRecord& record) const {
    std::shared_lock lock(mutex_);
    if (observer_) observer_(record);
  }

 private:
  mutable std::shared_mutex mutex_;  // guards observer_
  TaskObserver observer_;
  std::atomic<bool> occupied_{false};
};

}  // namespace troupe::gpu
