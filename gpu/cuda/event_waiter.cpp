#include "gpu/cuda/event_waiter.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include "gpu/cuda/status.hpp"

namespace troupe::gpu {

EventWaiter::EventWaiter(int device, std::chrono::microseconds poll_period, DeviceFailure& failure,
                         std::function<void(const core::Error&)> on_failure)
    : device_(device),
      poll_period_(poll_period),
      failure_(failure),
      on_failure_(std::move(on_failure)),
      thread_([this] { work(); }) {}

EventWaiter::~EventWaiter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventWaiter::add(std::uint64_t stream, Entry entry) {
  {
    std::lock_guard lock(mutex_);
    incoming_.emplace_back(stream, std::move(entry));
  }
  changed_.notify_one();
}

void EventWaiter::forget(std::uint64_t stream) {
  std::lock_guard lock(calls_mutex_);
  forgotten_.insert(stream);
}

void EventWaiter::call(std::uint64_t stream, const std::function<void()>& function) {
  std::lock_guard lock(calls_mutex_);
  if (!forgotten_.contains(stream)) function();
}

void EventWaiter::wake() {
  {
    std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  changed_.notify_one();
}

void EventWaiter::work() {
  pthread_setname_np(pthread_self(), fmt::format("cuda{} events", device_).c_str());
  const DeviceGuard current(device_);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (waiting_.empty() && incoming_.empty() && !is_woken_) {
      changed_.wait(lock, [this] { return stopping_ || is_woken_ || !incoming_.empty(); });
    }
    is_woken_ = false;
    take_incoming();
    lock.unlock();
    poll();
    if (failure_.is_set()) end_all();
    if (!waiting_.empty()) std::this_thread::sleep_for(poll_period_);
    lock.lock();
  }
}

void EventWaiter::take_incoming() {
  for (auto& [stream, entry] : incoming_) waiting_[stream].push_back(std::move(entry));
  incoming_.clear();
}

void EventWaiter::poll() {
  for (auto queue = waiting_.begin(); queue != waiting_.end();) {
    auto& entries = queue->second;
    while (!entries.empty()) {
      const cudaError_t status = queried(cudaEventQuery(entries.front().event.native()));
      if (status == cudaErrorNotReady) break;
      if (status != cudaSuccess) failure_.set(cuda_error(status, "cudaEventQuery", device_));
      // A failure that existed when the entry was added means that earlier work did not run.
      if (failure_.is_set()) return;
      Entry entry = std::move(entries.front());
      entries.pop_front();
      call(queue->first, [&entry] { entry.done(std::move(entry.event)); });
    }
    queue = entries.empty() ? waiting_.erase(queue) : std::next(queue);
  }
}

void EventWaiter::end_all() {
  const auto error = *failure_.get();
  const auto ended = std::exchange(waiting_, {});
  for (const auto& [stream, entries] : ended) {
    for (const auto& entry : entries) {
      if (entry.failed) call(stream, [&] { entry.failed(error); });
    }
  }
  if (const auto tell = std::exchange(on_failure_, nullptr)) tell(error);
}

}  // namespace troupe::gpu
