#include "actors/world/io_worker.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace troupe::actors {

void run_together(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& job) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (auto i = next.fetch_add(1); i < count; i = next.fetch_add(1)) job(i);
  };
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
  work();
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
}

void IoWorker::run(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void IoWorker::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace troupe::actors
