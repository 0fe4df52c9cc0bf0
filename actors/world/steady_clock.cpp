#include "actors/world/steady_clock.hpp"

#include <pthread.h>

#include <utility>

namespace troupe::actors {

SteadyClock::SteadyClock() : worker_([this] { work(); }) {}

SteadyClock::~SteadyClock() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  worker_.join();
}

std::chrono::nanoseconds SteadyClock::now() const {
  return std::chrono::steady_clock::now().time_since_epoch();
}

AlarmId SteadyClock::arm(std::chrono::nanoseconds delay, std::function<void()> callback) {
  auto time = now() + delay;
  std::lock_guard lock(mutex_);
  AlarmId id = ++last_id_;
  alarms_.emplace(Key{time, id}, std::move(callback));
  times_.emplace(id, time);
  if (alarms_.begin()->first.second == id) changed_.notify_one();
  return id;
}

void SteadyClock::cancel(AlarmId id) {
  std::lock_guard lock(mutex_);
  auto found = times_.find(id);
  if (found == times_.end()) return;
  alarms_.erase({found->second, id});
  times_.erase(found);
}

void SteadyClock::work() {
  pthread_setname_np(pthread_self(), "troupe-clock");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (alarms_.empty()) {
      changed_.wait(lock);
      continue;
    }
    auto [time, id] = alarms_.begin()->first;
    if (time > now()) {
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(time));
      continue;
    }
    auto callback = std::move(alarms_.extract(alarms_.begin()).mapped());
    times_.erase(id);
    lock.unlock();
    callback();
    lock.lock();
  }
}

}  // namespace troupe::actors
