#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace troupe::actors {

/// One thread, named "io", which does what blocks on the disk, in order.
class IoWorker {
 public:
  IoWorker();
  /// Waits for the job that runs; those that are queued are dropped.
  ~IoWorker();
  IoWorker(const IoWorker&) = delete;
  IoWorker& operator=(const IoWorker&) = delete;

  /// From any thread. `job` must not throw.
  void run(std::function<void()> job);

 private:
  void work();

  std::mutex mutex_;  // guards jobs_ and ending_
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // at most one a staging buffer, and a few of a save's beginning
                                            // and end
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace troupe::actors
