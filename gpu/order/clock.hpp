#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe::gpu {

/// Names a line: a stream, or a place of the host where one thing happens after another.
using LineId = std::uint64_t;

/// One moment of a line; ticks count from 1.
struct Moment {
  LineId line = 0;
  std::uint64_t tick = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

/// A vector clock: for each line, the last of its moments that has passed. Lines not mentioned are at 0.
class OrderClock {
 public:
  std::uint64_t tick_of(LineId line) const;
  /// The moment comes before everything that happens at this clock or later.
  bool covers(Moment moment) const { return tick_of(moment.line) >= moment.tick; }
  void advance(Moment moment);
  /// False: it has told nothing new.
  bool join(const OrderClock& other);
  void forget(std::span<const LineId> lines);
  std::size_t lines() const { return moments_.size(); }

  friend bool operator==(const OrderClock&, const OrderClock&) = default;

 private:
  std::vector<Moment> moments_;  ///< by line
};

}  // namespace troupe::gpu
