#include "actors/world/io_worker.hpp"

#include <pthread.h>

#include <utility>

namespace troupe::actors {

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
