#include "core/program/launch_cursor.hpp"

#include <algorithm>

namespace troupe::core {

LaunchCursor::LaunchCursor(const Program& program) : program_(&program) {
  settle();
}

const ProgramSegment& LaunchCursor::segment() const {
  if (segment_ == 0) return program_->body;
  return segment_ == 1 ? program_->last_round : program_->epilogue;
}

void LaunchCursor::advance() {
  ++place_;
  settle();
}

void LaunchCursor::settle() {
  while (!at_end()) {
    const ProgramSegment& now = segment();
    if (time_ == now.times || now.runs.empty()) {
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
      round_ = segment_ == 0 ? time_ : std::max(program_->rounds - 1, 0);
      slot_ = slot_of(entry_);
      return;
    }
  }
}

/// The n-th unit of a sweep has slot n % slots.
int LaunchCursor::slot_of(const ProgramEntry& entry) {
  if (entry.tensor.kind == TensorKind::verdict) return -1;
  const bool gathers = entry.tensor.kind == TensorKind::parameters;
  const Phase sweep = gathers ? entry.needed.phase : entry.ready.phase;
  const auto pool = static_cast<std::size_t>(gathers ? Pool::parameters : Pool::gradients);
  if (program_->credits[pool] == 0 || (sweep != Phase::forward && sweep != Phase::backward)) return -1;
  if (program_->unit(entry.tensor.unit).residency == Residency::resident) return -1;
  Sweep& now = sweeps_[pool];
  if (now.round != round_ || now.phase != sweep) now = {.round = round_, .phase = sweep};
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
