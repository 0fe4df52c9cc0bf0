#include "actors/world/io_worker.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "gpu/order/host_line.hpp"

namespace troupe::actors {

void run_together(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& job) {
  std::atomic<std::size_t> next{0};
  // What each knows of the others' work at the end; for the caller.
  auto& caller = gpu::HostLine::current();
  const auto before = caller.past();
  std::mutex mutex;  // guards after
  gpu::HostLine after;
  const auto work = [&] {
    gpu::HostLine line;
    const gpu::HostScope scope(line, before);
    for (auto i = next.fetch_add(1); i < count; i = next.fetch_add(1)) job(i);
    std::lock_guard lock(mutex);
    after.join(line.clock());
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
    work();
  }
  caller.join(after.clock());
}

IoWorker::IoWorker() : thread_([this] { work(); }) {
  ::pthread_setname_np(thread_.native_handle(), "io");
}

IoWorker::~IoWorker() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    jobs_.clear();
  }
  changed_.notify_one();
  thread_.join();
  gpu::HostLine::current().join(over_);
}

void IoWorker::run(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back([job = std::move(job), past = gpu::HostLine::current().past()] {
      gpu::HostLine::current().join(past);
      job();
    });
  }
  changed_.notify_one();
}

void IoWorker::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) {
      over_ = gpu::HostLine::current().past();
      return;
    }
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace troupe::actors
