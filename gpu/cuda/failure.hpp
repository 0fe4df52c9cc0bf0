#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

#include "core/result.hpp"

namespace troupe::gpu {

/// The first failure of a device, which is its last: what was to run is not known to have run, so nobody may
/// go on from there. Thread safe.
class DeviceFailure {
 public:
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  std::optional<core::Error> get() const;
  /// Keeps the first error; `on_set` of watch() is called for that one.
  void set(core::Error error);
  /// The one to be told, from the thread of set(). Before the first set().
  void watch(std::function<void()> on_set) { on_set_ = std::move(on_set); }

 private:
  mutable std::mutex mutex_;  // guards error_
  std::optional<core::Error> error_;
  std::function<void()> on_set_;
  std::atomic<bool> is_set_{false};
};

}  // namespace troupe::gpu
