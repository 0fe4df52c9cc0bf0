#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "actors/world/clock.hpp"

namespace troupe::actors {

/// CLOCK_MONOTONIC, which all processes of a host share, and one thread for the callbacks. Destroying it
/// drops the alarms that have not run.
class SteadyClock final : public Clock {
 public:
  SteadyClock();
  ~SteadyClock() override;

  std::chrono::nanoseconds now() const override;
  AlarmId arm(std::chrono::nanoseconds delay, std::function<void()> callback) override;
  void cancel(AlarmId id) override;

 private:
  using Key = std::pair<std::chrono::nanoseconds, AlarmId>;

  void work();

  std::mutex mutex_;  // guards all below except the thread
  std::condition_variable changed_;
  std::map<Key, std::function<void()>> alarms_;
  std::map<AlarmId, std::chrono::nanoseconds> times_;
  AlarmId last_id_ = 0;
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace troupe::actors
