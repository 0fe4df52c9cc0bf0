#include "core/program/launch_cursor.hpp"

#include <algorithm>

namespace troupe::core {

LaunchCursor::LaunchCursor(const Program& program)
    : program_(&program), clock_(program.clock()), segments_(program.segments()) {
  settle();
}

void LaunchCursor::advance() {
  ++place_;
  settle();
}

void LaunchCursor::settle() {
  while (!at_end()) {
    const ProgramSegment& now = *segments_[segment_];
    if (time_ == now.times) {
      ++segment_;
      time_ = 0;
    } else if (run_ == now.runs.size()) {
      ++time_;
      run_ = 0;
    } else if (repetition_ == now.runs[run_].times) {
      ++run_;
      repetition_ = 0;
    } else if (place_ == now.runs[run_].entries.size()) {
      ++repetition_;
      place_ = 0;
    } else {
      const ProgramRun& run = now.runs[run_];
      entry_ = shifted(run.entries[place_], repetition_ * run.unit_step);
      round_ = round_in(now, run);
      slot_ = slot_of(entry_);
      return;
    }
  }
}

int LaunchCursor::round_in(const ProgramSegment& segment, const ProgramRun& run) const {
  if (&segment == &program_->body) return time_;
  const bool is_last = &segment == &program_->last_round || &segment == &program_->epilogue;
  return is_last ? std::max(program_->rounds - 1, 0) : run.round + time_ * segment.round_step;
}

/// The n-th unit of a pass has slot n % slots.
int LaunchCursor::slot_of(const ProgramEntry& entry) {
  if (entry.tensor.kind == TensorKind::verdict) return -1;
  const bool gathers = entry.tensor.kind == TensorKind::parameters;
  const int pass = clock_.pass_of(gathers ? entry.needed : entry.ready, round_);
  const auto pool = static_cast<std::size_t>(gathers ? Pool::parameters : Pool::gradients);
  if (program_->credits[pool] == 0 || pass < 0) return -1;
  if (program_->unit(entry.tensor.unit).residency == Residency::resident) return -1;
  Sweep& now = sweeps_[pool];
  if (now.pass != pass) now = {.pass = pass};
  if (now.unit != entry.tensor.unit) {
    now.unit = entry.tensor.unit;
    ++now.ordinal;
  }
  return now.ordinal % program_->credits[pool];
}

void for_each_launch(const Program& program, const std::function<void(const Launch&)>& visit) {
  for (LaunchCursor cursor(program); !cursor.at_end(); cursor.advance()) visit(cursor.current());
}

}  // namespace troupe::core
