#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "core/program/program.hpp"

namespace troupe::core {

/// An entry as it is launched.
struct Launch {
  const ProgramEntry* entry = nullptr;  ///< owned by the cursor, valid until it advances
  int round = 0;                        ///< for entries of the epilogue the last round
  /// In the pool that holds the full tensor of the entry's unit, if there is one.
  int slot = -1;
};

/// Iterates over the launches of one step in order, without unfolding the program.
class LaunchCursor {
 public:
  /// The program must outlive the cursor.
  explicit LaunchCursor(const Program& program);

  bool at_end() const { return segment_ == segments_.size(); }
  /// Must not be called at the end.
  Launch current() const { return {.entry = &entry_, .round = round_, .slot = slot_}; }
  void advance();

 private:
  /// The units of a pool that got a slot in this pass over the units.
  struct Sweep {
    int pass = -1;
    int ordinal = -1;
    int unit = -1;
  };

  /// Moves to the next place that has an entry, from one that may have none.
  void settle();
  int round_in(const ProgramSegment& segment, const ProgramRun& run) const;
  int slot_of(const ProgramEntry& entry);

  const Program* program_;
  StepClock clock_;
  std::vector<const ProgramSegment*> segments_;
  std::size_t segment_ = 0;
  int time_ = 0;  // in the segment
  std::size_t run_ = 0;
  int repetition_ = 0;  // in the run
  std::size_t place_ = 0;
  std::array<Sweep, kPools> sweeps_;
  ProgramEntry entry_;
  int round_ = 0;
  int slot_ = -1;
};

/// Calls `visit` for every launch of a step, in order.
void for_each_launch(const Program& program, const std::function<void(const Launch&)>& visit);

}  // namespace troupe::core
