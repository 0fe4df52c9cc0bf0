#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "gpu/devices.hpp"
#include "gpu/host/marker.hpp"
#include "gpu/host/observer_slot.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

/// Tells, once, that a task of a device has thrown. Thread-safe.
class FailureSlot {
 public:
  explicit FailureSlot(DeviceFailed told) : told_(std::move(told)) {}

  void set(const core::Error& error) {
    if (!is_set_.exchange(true) && told_) told_(error);
  }

 private:
  const DeviceFailed told_;
  std::atomic<bool> is_set_{false};
};

/// A stream of the host device: a queue and one thread, named after the stream, that runs it in order. The
/// thread sleeps while the queue is empty. A wait for an event blocks this thread only.
class HostStream final : public StreamQueue {
 public:
  /// `observer` and `failure` must outlive the stream.
  HostStream(StreamOptions options, const ObserverSlot& observer, FailureSlot& failure);
  ~HostStream() override;

  std::string_view name() const override { return name_; }
  void enqueue(std::string_view label, TaskCost cost, std::function<void()> body) override;
  void enqueue_async(std::string_view label, std::function<void(Completion)> start) override;
  void record(EventView event) override;
  void wait(EventView event) override;
  void notify(std::function<void()> callback) override;
  core::Result<void> synchronize(std::chrono::nanoseconds deadline) override;

 private:
  struct Task {
    std::string_view label;  // empty for tasks that only keep order: records, waits and notifications
    std::function<void()> run;
  };

  void push(Task task);
  bool is_idle();
  void work(int priority);
  void run(const Task& task) const;
  void run_observed(const Task& task) const;

  const std::string name_;
  const ObserverSlot& observer_;
  FailureSlot& failure_;
  std::mutex mutex_;  // guards queue_, running_ and stopping_
  std::condition_variable changed_;
  std::deque<Task> queue_;
  bool running_ = false;  ///< a task, outside the lock
  bool stopping_ = false;
  std::thread worker_;
};

/// The clock of the host device: CLOCK_MONOTONIC, shared by all processes of a host.
DeviceTime host_now();

}  // namespace troupe::gpu
