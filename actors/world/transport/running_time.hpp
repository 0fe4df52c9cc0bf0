#pragma once

#include <chrono>
#include <utility>

namespace troupe::actors {

/// The time in which this process ran: if it was stopped, or its host, it heard nobody and blames nobody for
/// it. A timer that is late shows that. Not thread-safe.
class RunningTime {
 public:
  using Time = std::chrono::nanoseconds;
  /// A timer that fires later than this shows that this process did not run.
  static constexpr Time kLatest = std::chrono::seconds(1);

  /// The present, without the time in which this process did not run. `due` is when a timer was to fire, in
  /// time that includes it; if that is long ago, it becomes the present.
  Time now(Time steady, Time& due) {
    if (steady - kLatest > due) {
      absence_ = steady - std::exchange(due, steady);
      absences_ += absence_;
      ran_again_ = steady - absences_;
    }
    return steady - absences_;
  }
  /// In time that includes the absences.
  Time including_absences(Time time) const { return time + absences_; }
  /// For how long this process did not run just before `now`.
  Time absence_before(Time now) const { return now - ran_again_ < kLatest ? absence_ : Time{}; }

 private:
  Time absences_{};
  Time absence_{};    ///< the last one
  Time ran_again_{};  ///< by now(), after that
};

}  // namespace troupe::actors
