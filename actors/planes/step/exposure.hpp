#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

namespace troupe::actors {

/// A moment by the device's clock, and how long "communication" and the optimizer had been busy up to then.
struct BusyMoment {
  std::chrono::nanoseconds at{};
  std::chrono::nanoseconds communication{};
  std::chrono::nanoseconds optimizer{};
};

/// Learns when the compute stream ran out of work. Thread safe.
class ComputeWatch {
 public:
  void reach(BusyMoment moment) {
    std::lock_guard lock(mutex_);
    reached_ = moment;
  }
  std::optional<BusyMoment> reached() const {
    std::lock_guard lock(mutex_);
    return reached_;
  }

 private:
  mutable std::mutex mutex_;  // guards reached_
  std::optional<BusyMoment> reached_;
};

/// What a wait of the trainer's thread cost: the time in which nothing was computed, the part of it in which
/// "communication" was busy, and the part of the rest in which the optimizer was.
struct Exposure {
  std::chrono::nanoseconds total{};
  std::chrono::nanoseconds communication{};
  std::chrono::nanoseconds optimizer{};

  Exposure& operator+=(const Exposure& other) {
    total += other.total;
    communication += other.communication;
    optimizer += other.optimizer;
    return *this;
  }
};

/// For a wait from `begin` to `end`. A trainer that computes on a stream (`watch`, requested at the
/// beginning) goes on until the stream is empty; any other (null) stops immediately.
inline Exposure exposure(BusyMoment begin, BusyMoment end, const ComputeWatch* watch) {
  if (watch) {
    const auto idle = watch->reached();
    if (!idle) return {};
    if (idle->at > begin.at) begin = *idle;
  }
  constexpr auto kNothing = std::chrono::nanoseconds::zero();
  const auto total = std::max(end.at - begin.at, kNothing);
  const auto communication = std::clamp(end.communication - begin.communication, kNothing, total);
  const auto optimizer = std::clamp(end.optimizer - begin.optimizer, kNothing, total - communication);
  return {total, communication, optimizer};
}

}  // namespace troupe::actors
