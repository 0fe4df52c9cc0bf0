#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>

namespace troupe::actors {

/// A call that may never return, such as a wait of a library's without a limit, and that somebody else can
/// give up on.
class BoundedWait {
 public:
  /// Calls `wait` in a thread of its own. What it refers to outlives the call, not only this object.
  explicit BoundedWait(std::function<void()> wait);
  BoundedWait(const BoundedWait&) = delete;
  BoundedWait& operator=(const BoundedWait&) = delete;
  /// Leaves the thread behind if the call has not returned.
  ~BoundedWait();

  /// True: the call has returned.
  bool ends_within(std::chrono::milliseconds patience) const;

 private:
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace troupe::actors
