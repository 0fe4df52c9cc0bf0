#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "gpu/order/host_line.hpp"

namespace troupe::actors {

/// Calls job(0) to job(count - 1) on up to `threads` threads, including the caller's, and returns when all
/// calls are done.
void run_together(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& job);

/// One thread, named "io", which runs in order what blocks on the disk.
class IoWorker {
 public:
  IoWorker();
  /// Waits for the running job; queued jobs are dropped.
  ~IoWorker();
  IoWorker(const IoWorker&) = delete;
  IoWorker& operator=(const IoWorker&) = delete;

  /// From any thread. `job` must not throw.
  void run(std::function<void()> job);

 private:
  void work();

  std::mutex mutex_;  // guards jobs_ and ending_
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // at most one per staging buffer, and a few at the beginning and
                                            // end of a save
  bool ending_ = false;
  gpu::Past over_;  ///< all jobs; once the thread has ended
  std::thread thread_;
};

}  // namespace troupe::actors
