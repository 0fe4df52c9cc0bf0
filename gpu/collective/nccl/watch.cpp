#include "gpu/collective/nccl/watch.hpp"

#include <pthread.h>

#include <utility>

namespace troupe::gpu {

NcclWatch::NcclWatch(std::chrono::nanoseconds period,
                     std::function<core::Result<NcclCurrentDevice>()> make_current)
    : thread_([this, period, make_current = std::move(make_current)] { work(period, make_current); }) {}

NcclWatch::~NcclWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void NcclWatch::add(std::weak_ptr<NcclWatched> watched) {
  std::lock_guard lock(mutex_);
  watched_.push_back(std::move(watched));
}

void NcclWatch::wake() {
  {
    std::lock_guard lock(mutex_);
    if (awake_) return;
    awake_ = true;
  }
  changed_.notify_one();
}

void NcclWatch::work(std::chrono::nanoseconds period,
                     const std::function<core::Result<NcclCurrentDevice>()>& make_current) {
  pthread_setname_np(pthread_self(), "nccl watch");
  // A device that is out of order shows in what is watched.
  const auto current = make_current();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return awake_ || stopping_; });
    changed_.wait_for(lock, period, [this] { return stopping_; });
    if (stopping_) return;
    // Cleared before looking: work that begins meanwhile wakes the next round.
    awake_ = false;
    std::erase_if(watched_, [](const auto& each) { return each.expired(); });
    const auto all = watched_;
    lock.unlock();
    bool runs = false;
    for (const auto& each : all) {
      if (const auto watched = each.lock()) runs = watched->look() || runs;
    }
    lock.lock();
    awake_ = awake_ || runs;
  }
}

}  // namespace troupe::gpu
