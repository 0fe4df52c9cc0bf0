#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/cuda/event_pool.hpp"
#include "gpu/cuda/failure.hpp"

namespace troupe::gpu {

/// The thread which turns completed events of one device into calls. It asks for the oldest event of every
/// stream, sleeps a poll period while any is outstanding, and sleeps without end while none is. Nobody holds
/// its lock while it asks the driver: a driver that hangs holds up this thread and no other.
///
/// Host functions of CUDA are not used for this: they hold up their stream, may not call CUDA, and never run
/// once the device has failed.
class EventWaiter {
 public:
  struct Entry {
    PooledEvent event;
    std::function<void(PooledEvent)> done;
    std::function<void(const core::Error&)> failed;  ///< may be empty
  };

  /// `failure` must outlive the waiter. Once it is set, every entry ends in failed(), and then on_failure is
  /// called, once.
  EventWaiter(int device, std::chrono::microseconds poll_period, DeviceFailure& failure,
              std::function<void(const core::Error&)> on_failure);
  /// Entries which still wait are dropped.
  ~EventWaiter();

  /// `event` was recorded on the stream of this number, after those of the stream's entries before it.
  void add(std::uint64_t stream, Entry entry);
  /// Looks at the failure.
  void wake();

 private:
  void work();
  void take_incoming();
  void poll();
  void end_all();

  const int device_;
  const std::chrono::microseconds poll_period_;
  DeviceFailure& failure_;
  std::function<void(const core::Error&)> on_failure_;
  std::map<std::uint64_t, std::deque<Entry>> waiting_;  ///< of the thread's own; no empty queues
  std::mutex mutex_;                                    // guards incoming_, is_woken_ and stopping_
  std::condition_variable changed_;
  std::vector<std::pair<std::uint64_t, Entry>> incoming_;
  bool is_woken_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe::gpu
