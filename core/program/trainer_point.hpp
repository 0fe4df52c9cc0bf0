#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/terms.hpp"
#include "core/program/unit_order.hpp"

namespace troupe::core {

/// What a rank does in a step, in this order: for each round `round_begin`, forward of all units from 0 up,
/// backward from the last one down (with the recomputation of activations, if there is any), `round_end`;
/// then `finish`, where the gradients of the step are complete; `commit`, where the verdict is known; the
/// update of all units from 0 up; `step_end`; and the forward of the step after it. A rank without a lane in
/// a round passes its points without computing. Where the step uses units in another order (UnitOrder),
/// forward, update and the next forward go by its list of forward, and backward by that of backward.
///
/// A step may have a list of passes in place of that order of rounds (UnitPass), where `round_begin` comes
/// before the first pass of a round and `round_end` after its last one.
enum class Phase : std::uint8_t {
  round_begin,
  forward,
  backward,
  weights,  ///< of lists that split backward: the half that adds to gradients
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
Phase phase_of(Pass pass) noexcept;

/// "backward of units 2 to 3 in round 1"
std::string describe(const UnitPass& pass);
/// For a list that visits each unit in three passes per round.
bool splits_backward(const std::vector<UnitPass>& passes);
/// The pass that adds to gradients.
inline Pass gradient_pass(bool is_split) {
  return is_split ? Pass::weights : Pass::backward;
}

struct TrainerPoint {
  Phase phase = Phase::round_begin;
  int unit = 0;   ///< 0 for phases that are not of a unit
  int round = 0;  ///< in lists of passes: counted from the round of the entry that names the point

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
  /// For an order as normalised() leaves it.
  StepClock(int units, int rounds, const UnitOrder& order);
  /// For a list that passes check_passes() (passes.hpp); empty: as above.
  StepClock(int units, int rounds, std::vector<UnitPass> passes);

  /// `round` matters for the phases of a round only.
  std::int64_t at(const TrainerPoint& point, int round) const;
  /// Points of one step, with the forward of the next.
  std::int64_t points() const;
  /// The inverse of at(), and the round of the point.
  TrainerPoint point(std::int64_t at) const;
  int round_of(std::int64_t at) const;
  /// Which pass of the step a point of forward, backward or weights is in, from 0; -1: none.
  int pass_of(const TrainerPoint& point, std::int64_t round) const;
  /// Backward and weights are two passes.
  bool is_split() const;

 private:
  struct Listed;
  /// An order both ways: the unit at each place, and the place of each unit.
  struct Ordered;

  int forward_place(int unit) const;
  int forward_unit(int place) const;
  int backward_place(int unit) const;
  int backward_unit(int place) const;
  std::int64_t round_points() const { return 2 * std::int64_t{units_} + 2; }
  /// The point after all rounds.
  std::int64_t rest() const;

  int units_;
  int rounds_;
  std::shared_ptr<const Listed> listed_;    ///< null: rounds one after another
  std::shared_ptr<const Ordered> ordered_;  ///< null: units from 0 up, and from the last one down
};

}  // namespace troupe::core
