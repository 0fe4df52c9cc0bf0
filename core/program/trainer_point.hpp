#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::core {

/// What a rank does in a step, in this order: for each round `round_begin`, forward of all units from 0 up,
/// backward from the last one down (with the recomputation of activations, if there is any), `round_end`;
/// then `finish`, where the gradients of the step are complete; `commit`, where the verdict is known; the
/// update of all units from 0 up; `step_end`; and the forward of the step after it. A rank without a lane in
/// a round passes its points without computing.
enum class Phase : std::uint8_t {
  round_begin,
  forward,
  backward,
  round_end,
  finish,
  commit,
  update,
  step_end,
  next_forward,
};
std::string_view name_of(Phase phase) noexcept;
/// The phases that pass once for each unit.
bool is_of_unit(Phase phase) noexcept;
/// The phases that pass in every round.
bool is_of_round(Phase phase) noexcept;

struct TrainerPoint {
  Phase phase = Phase::round_begin;
  int unit = 0;  ///< 0 for phases that are not of a unit

  friend bool operator==(const TrainerPoint&, const TrainerPoint&) = default;
};

/// "backward of unit 3", "finish"
std::string describe(const TrainerPoint& point);
/// The point of another unit; the same when it is not of a unit.
TrainerPoint shifted(TrainerPoint point, int units);

/// Numbers the points of a step in the order in which they pass.
class StepClock {
 public:
  StepClock(int units, int rounds) : units_(units), rounds_(rounds) {}

  /// `round` matters for the phases of a round only.
  std::int64_t at(const TrainerPoint& point, int round) const;
  /// Points of one step, with the forward of the next.
  std::int64_t points() const;
  /// The inverse of at(), and the round of the point.
  TrainerPoint point(std::int64_t at) const;
  int round_of(std::int64_t at) const;

 private:
  std::int64_t round_points() const { return 2 * std::int64_t{units_} + 2; }

  int units_;
  int rounds_;
};

}  // namespace troupe::core
