#include "actors/world/loop_clock.hpp"

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <utility>

namespace troupe::actors {

struct LoopClock::Alarms {
  std::map<AlarmId, asio::steady_timer> timers;
  AlarmId last = 0;
};

LoopClock::LoopClock(asio::io_context& loop) : loop_(loop), alarms_(std::make_shared<Alarms>()) {}

LoopClock::~LoopClock() {
  alarms_->timers.clear();
}

std::chrono::nanoseconds LoopClock::now() const {
  return std::chrono::steady_clock::now().time_since_epoch();
}

AlarmId LoopClock::arm(std::chrono::nanoseconds delay, std::function<void()> callback) {
  const AlarmId id = ++alarms_->last;
  asio::steady_timer& timer = alarms_->timers.emplace(id, loop_).first->second;
  timer.expires_after(delay);
  timer.async_wait([alarms = alarms_, id, run = std::move(callback)](const std::error_code&) {
    // A timer that has fired can no longer be cancelled: what counts is whether the alarm still exists.
    if (alarms->timers.erase(id) > 0) run();
  });
  return id;
}

void LoopClock::cancel(AlarmId id) {
  alarms_->timers.erase(id);
}

}  // namespace troupe::actors
