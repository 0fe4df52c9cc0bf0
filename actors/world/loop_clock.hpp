#pragma once

#include <map>
#include <memory>

#include "actors/world/clock.hpp"

namespace asio {
class io_context;
}

namespace troupe::actors {

/// CLOCK_MONOTONIC, with callbacks on the thread that runs the loop: for a process that must have only one
/// thread, because it forks. `loop` must outlive it.
class LoopClock final : public Clock {
 public:
  explicit LoopClock(asio::io_context& loop);
  ~LoopClock() override;
  LoopClock(const LoopClock&) = delete;
  LoopClock& operator=(const LoopClock&) = delete;

  std::chrono::nanoseconds now() const override;
  AlarmId arm(std::chrono::nanoseconds delay, std::function<void()> callback) override;
  void cancel(AlarmId id) override;

 private:
  struct Alarms;
  asio::io_context& loop_;
  std::shared_ptr<Alarms> alarms_;  // owned by this and by the alarms that have fired and wait in the loop
};

}  // namespace troupe::actors
