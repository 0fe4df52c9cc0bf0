#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "actors/world/clock.hpp"
#include "actors/world/random.hpp"
#include "gpu/simulated/timeline.hpp"

namespace troupe::actors {

/// Virtual time of a simulation: everything that happens in it is an action of this loop, in one thread. Time
/// advances only when nothing is ready; among ready actions the seed picks which runs next. To make two
/// actions run in order, chain them.
///
/// The trace hash covers the time and label of every action that ran and everything noted, in order: if it
/// differs between two runs of one seed, something depends on more than the seed.
class EventLoop final : public gpu::Timeline, public Clock {
 public:
  explicit EventLoop(std::uint64_t seed);

  std::chrono::nanoseconds now() const override { return now_; }
  void after(std::chrono::nanoseconds delay, std::function<void()> action) override {
    schedule(delay, "after", std::move(action));
  }
  AlarmId arm(std::chrono::nanoseconds delay, std::function<void()> callback) override {
    return schedule(delay, "alarm", std::move(callback));
  }
  /// The label must live as long as the loop, as a literal does.
  AlarmId schedule(std::chrono::nanoseconds delay, std::string_view label, std::function<void()> action);
  void cancel(AlarmId id) override;
  /// Enters something from the run itself into the trace, for example a message's bytes.
  void note(std::string_view what);

  enum class Stop : std::uint8_t {
    condition,    ///< `until` was true
    quiet,        ///< nothing is left to do
    time_limit,   ///< the next action is later than the limit, which now() has reached
    event_limit,  ///< this call has run the permitted number of actions
  };
  struct Limits {
    std::chrono::nanoseconds time = std::chrono::nanoseconds::max();  ///< on the clock of now()
    std::uint64_t events = std::numeric_limits<std::uint64_t>::max();
  };
  /// Runs actions; checks `until` before each of them.
  Stop run_until(const std::function<bool()>& until, Limits limits);
  Stop run(Limits limits);

  std::uint64_t events() const { return events_; }  ///< actions that ran
  std::uint64_t trace_hash() const { return trace_hash_; }
  bool is_quiet() const { return pending_ == 0; }

 private:
  struct Slot {
    std::function<void()> action;
    std::string_view label;
    std::uint32_t generation = 1;
  };
  struct Entry {
    std::chrono::nanoseconds time;
    std::uint64_t order;
    std::uint32_t slot;
    std::uint32_t generation;

    /// The top of the heap is its largest entry.
    bool operator<(const Entry& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  bool is_live(const Entry& entry) const { return slots_[entry.slot].generation == entry.generation; }
  void release(std::uint32_t slot);
  bool advance(std::chrono::nanoseconds limit);
  std::optional<Entry> pick(std::chrono::nanoseconds limit);
  void run_one(const Entry& entry);

  std::chrono::nanoseconds now_{0};
  RandomStream picks_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Entry> later_;  ///< a heap
  std::vector<Entry> ready_;  ///< at now_, in no order
  std::size_t pending_ = 0;   ///< not cancelled
  std::uint64_t scheduled_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t trace_hash_ = 0;
};

}  // namespace troupe::actors
