#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

#include "core/result.hpp"

namespace troupe::gpu {

/// The first failure of a device, which is final: work that was to run may not have run, so nothing may
/// continue from there. Thread-safe.
class DeviceFailure {
 public:
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  std::optional<core::Error> get() const;
  /// Keeps the first error, for which it calls the `on_set` of watch().
  void set(core::Error error);
  /// Sets the function that set() calls, in the thread of set(). Call it before the first set().
  void watch(std::function<void()> on_set) { on_set_ = std::move(on_set); }

 private:
  mutable std::mutex mutex_;  // guards error_
  std::optional<core::Error> error_;
  std::function<void()> on_set_;
  std::atomic<bool> is_set_{false};
};

}  // namespace troupe::gpu
