#include "gpu/collective/gloo/deadline_keeper.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace troupe::gpu {

using posix::Countdown;

DeadlineKeeper::DeadlineKeeper() : thread_([this] { work(); }) {}

DeadlineKeeper::~DeadlineKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

DeadlineKeeper::Watch::Watch(DeadlineKeeper& keeper, std::chrono::nanoseconds limit,
                             std::function<void()> on_over)
    : keeper_(keeper) {
  const auto now = Countdown::Clock::now();
  const std::lock_guard lock(keeper.mutex_);
  entry_ = keeper.entries_.insert(keeper.entries_.end(), {Countdown(limit, now), std::move(on_over)});
  if (limit < keeper.next_look_ - now) keeper.changed_.notify_one();
}

DeadlineKeeper::Watch::~Watch() {
  const std::lock_guard lock(keeper_.mutex_);
  keeper_.entries_.erase(entry_);
}

std::chrono::nanoseconds DeadlineKeeper::absence() {
  const std::lock_guard lock(mutex_);
  const auto now = Countdown::Clock::now();
  look(now);
  return now - back_ < Countdown::kLatest ? absence_ : std::chrono::nanoseconds::zero();
}

void DeadlineKeeper::look(Countdown::Clock::time_point now) {
  if (now - next_look_ > Countdown::kLatest) {
    absence_ = now - next_look_;
    back_ = now;
  }
  next_look_ = std::max(next_look_, now);
}

void DeadlineKeeper::work() {
  pthread_setname_np(pthread_self(), "gloo deadlines");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    look(Countdown::Clock::now());
    auto wait = Countdown::kLook;
    for (Entry& entry : entries_) {
      if (!entry.on_over) continue;
      const auto left = entry.left.left();
      if (left > std::chrono::nanoseconds::zero())
        wait = std::min(wait, left);
      else
        std::exchange(entry.on_over, nullptr)();
    }
    next_look_ = Countdown::Clock::now() + wait;
    changed_.wait_for(lock, wait);
  }
}

}  // namespace troupe::gpu
