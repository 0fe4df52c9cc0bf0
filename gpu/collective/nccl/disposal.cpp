#include "gpu/collective/nccl/disposal.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/collective/nccl/poll.hpp"

namespace troupe::gpu {

using Clock = std::chrono::steady_clock;

/// The inputs and results of a disposing thread. It outlives the NcclDisposal if the thread is stuck.
class NcclDisposal::Task {
 public:
  Task(std::shared_ptr<const NcclLibrary> library, const NcclDevicePort& port, NcclHandle handle,
       const NcclOptions& options, bool in_peace)
      : library_(std::move(library)),
        make_current_(port.make_current),
        handle_(std::move(handle)),
        leave_budget_(options.leave_budget),
        in_peace_(in_peace),
        began_(Clock::now()),
        budget_(options.abort_budget + (in_peace ? options.leave_budget : std::chrono::nanoseconds{})) {}

  void run() {
    // A device that is out of order is no reason to keep the communicator.
    const auto current = make_current_();
    const bool is_alone = wait_for_calls();
    if (!in_peace_ || !finish(is_alone)) {
      (void)library_->api.comm_abort(handle_.comm);
    } else {
      // Whatever this says: after it the communicator may be gone, and nothing else may be called.
      (void)library_->api.comm_destroy(handle_.comm);
    }
    if (is_alone) forget_registrations();
    std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  bool is_done() const {
    std::lock_guard lock(mutex_);
    return done_;
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, began_ + budget_, [this] { return done_; });
  }

  /// The error to report, once.
  std::optional<core::Error> stuck() {
    std::lock_guard lock(mutex_);
    if (done_ || reported_ || Clock::now() < began_ + budget_) return std::nullopt;
    reported_ = true;
    return core::Error{
        core::Errc::timeout,
        fmt::format("{}: ncclCommAbort did not return within {} ms; the device cannot be used any "
                    "more in this process: end the process and start the rank again",
                    handle_.caller->text(),
                    std::chrono::duration_cast<std::chrono::milliseconds>(budget_).count())};
  }
  bool is_reported() const {
    std::lock_guard lock(mutex_);
    return reported_;
  }

  std::thread thread;  ///< accessed by the NcclDisposal only

 private:
  /// A polling thread gives up soon and must not find the communicator gone. False if a thread does not
  /// return: it is inside a call, which only the abort can end.
  bool wait_for_calls() const {
    std::unique_lock lock(*handle_.calls, std::defer_lock);
    return lock.try_lock_for(budget_ / 2);
  }

  /// Registrations end with their communicator; their memory may now be released.
  void forget_registrations() const {
    std::lock_guard lock(*handle_.calls);
    handle_.registrations->clear();
  }

  /// Ends what runs. False if the communicator is to be aborted instead of destroyed.
  bool finish(bool is_alone) const {
    const auto& api = library_->api;
    if (is_alone) {
      std::lock_guard lock(*handle_.calls);
      deregister_all(api, handle_.comm, *handle_.registrations);
    }
    NcclStatus status = api.comm_finalize(handle_.comm);
    if (status == NcclStatus::in_progress || status == NcclStatus::success) {
      status = poll_nccl(api, handle_.comm, began_ + leave_budget_, [] { return false; });
    }
    return status == NcclStatus::success;
  }

  const std::shared_ptr<const NcclLibrary> library_;
  const std::function<core::Result<NcclCurrentDevice>()> make_current_;
  const NcclHandle handle_;
  const std::chrono::nanoseconds leave_budget_;
  const bool in_peace_;
  const Clock::time_point began_;
  const std::chrono::nanoseconds budget_;
  mutable std::mutex mutex_;  // guards done_ and reported_
  std::condition_variable changed_;
  bool done_ = false;
  bool reported_ = false;
};

NcclDisposal::NcclDisposal(std::shared_ptr<const NcclLibrary> library, NcclDevicePort port,
                           NcclOptions options)
    : library_(std::move(library)), port_(std::move(port)), options_(std::move(options)) {}

NcclDisposal::~NcclDisposal() {
  (void)wait_for_all();
  for (const auto& task : tasks_) task->thread.detach();
}

std::shared_ptr<NcclDisposal::Task> NcclDisposal::abort(NcclHandle handle) {
  return start(std::move(handle), false);
}

std::shared_ptr<NcclDisposal::Task> NcclDisposal::leave(NcclHandle handle) {
  return start(std::move(handle), true);
}

std::shared_ptr<NcclDisposal::Task> NcclDisposal::start(NcclHandle handle, bool in_peace) {
  auto task = std::make_shared<Task>(library_, port_, std::move(handle), options_, in_peace);
  std::lock_guard lock(mutex_);
  task->thread = std::thread([task] { task->run(); });
  tasks_.push_back(task);
  return task;
}

bool NcclDisposal::wait(const std::shared_ptr<Task>& task) {
  const bool done = task->wait();
  (void)look();
  return done;
}

bool NcclDisposal::wait_for_all() {
  std::vector<std::shared_ptr<Task>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.assign(tasks_.begin(), tasks_.end());
  }
  for (const auto& task : tasks) task->wait();
  (void)look();
  std::lock_guard lock(mutex_);
  return tasks_.empty();
}

bool NcclDisposal::look() {
  std::vector<core::Error> stuck;
  bool runs = false;
  {
    std::lock_guard lock(mutex_);
    for (auto each = tasks_.begin(); each != tasks_.end();) {
      if ((*each)->is_done()) {
        // Only the thread's return is left: after a wait, callers may count threads.
        (*each)->thread.join();
        each = tasks_.erase(each);
        continue;
      }
      if (auto error = (*each)->stuck()) stuck.push_back(*std::move(error));
      runs = runs || !(*each)->is_reported();
      ++each;
    }
  }
  for (const auto& error : stuck) {
    if (options_.on_stuck) options_.on_stuck(error);
  }
  return runs;
}

std::function<void(const core::Error&)> end_process_when_stuck() {
  return [](const core::Error& error) {
    (void)std::fprintf(stderr, "troupe: %s\n", error.message.c_str());
    _exit(kAbortStuckExitCode);
  };
}

}  // namespace troupe::gpu
