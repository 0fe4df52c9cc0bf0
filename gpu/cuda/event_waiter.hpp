#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/cuda/event_pool.hpp"
#include "gpu/cuda/failure.hpp"

namespace troupe::gpu {

/// The thread that turns completed events of one device into calls. It queries the oldest event of every
/// stream, sleeps for a poll period while any is outstanding, and sleeps indefinitely while none is. No
/// thread holds its lock while querying the driver: a driver that hangs blocks this thread only.
///
/// CUDA host functions are not used for this: they block their stream, may not call CUDA, and never run once
/// the device has failed.
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
  /// Entries that still wait are dropped.
  ~EventWaiter();

  /// `event` was recorded on the stream of this number, after those of the stream's earlier entries.
  void add(std::uint64_t stream, Entry entry);
  /// Drops the stream's entries: when this returns, none of their functions runs, nor ever will. Not to be
  /// called by one of them.
  void forget(std::uint64_t stream);
  /// Checks the failure.
  void wake();

 private:
  void work();
  void take_incoming();
  void poll();
  void end_all();
  /// Calls a function of the stream's entries, unless the stream is forgotten.
  void call(std::uint64_t stream, const std::function<void()>& function);

  const int device_;
  const std::chrono::microseconds poll_period_;
  DeviceFailure& failure_;
  std::function<void(const core::Error&)> on_failure_;
  std::map<std::uint64_t, std::deque<Entry>> waiting_;  ///< used only by the thread; no empty queues
  std::mutex calls_mutex_;  // held during calls of entries' functions; guards forgotten_
  std::set<std::uint64_t> forgotten_;
  std::mutex mutex_;  // guards incoming_, is_woken_ and stopping_
  std::condition_variable changed_;
  std::vector<std::pair<std::uint64_t, Entry>> incoming_;
  bool is_woken_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe::gpu
