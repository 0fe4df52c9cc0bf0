#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "actors/session/context.hpp"
#include "actors/session/learned_order.hpp"
#include "core/ids.hpp"
#include "core/list.hpp"
#include "core/program/trainer_point.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Where the trainer is in its program: it passes the points of a step in order, tells the roles what may
/// start after each, and waits for what must be over before one begins. Used by the trainer's thread.
///
/// UG-1: parameters of a unit on demand are read only from acquire() to the next unit, or release().
/// UG-2: gradients that are kept in a pool are called ready only while their unit is acquired in backward.
/// That nothing is added to them at other times is up to the trainer.
class UnitGate {
 public:
  /// `exposed` runs a wait and measures it. Everything given must outlive it.
  using Exposed = std::function<core::Result<void>(const std::function<core::Result<void>()>&)>;
  UnitGate(const SessionContext& context, std::chrono::nanoseconds deadline, Exposed exposed);

  /// Some parameters are sharded, or some gradients reduced in every round, so that units must be acquired.
  bool has_units() const { return declared_ > 0; }
  std::uint32_t units() const { return declared_; }
  std::optional<core::UnitIndex> unit_of(core::ParameterIndex parameter) const;
  /// Units of the program before the trainer's.
  int resident_units() const { return resident_; }
  /// The point of the program whose unit the trainer has acquired; none: it has none.
  std::optional<core::TrainerPoint> place() const;

  core::Step step() const { return step_; }
  /// The last point of the step that has ended, by the program's clock; -1: none.
  std::int64_t passed() const { return passed_; }

  /// The next step; parameters hold `decided`.
  void begin_step(core::Step step, core::Step decided);
  core::Result<void> begin_round();
  core::Result<void> begin_backward();
  /// In place of both, of a list of passes: its lane. Errc::invalid_argument names the pass that comes next.
  core::Result<core::Lane> begin_pass(std::size_t pass);
  /// Waits until the unit's parameters may be read and, in backward, its gradients written. Ends the unit
  /// before it. Without units on demand it waits for the updates and gathers of the unit's parameters.
  core::Result<void> acquire(core::UnitIndex unit);
  core::Result<void> release(core::UnitIndex unit);
  /// With a list of passes: whether the one that has begun is the last of its round.
  core::Result<void> may_end_round() const;
  core::Result<void> end_round();
  /// Takes part in the rounds in which this rank has no lane.
  core::Result<void> pass_rest();
  /// Between steps: units are gathered as they are acquired, by all ranks alike. `decided` as above.
  void begin_evaluation(core::Step decided);
  void end_evaluation();
  /// An evaluation with one forward and, after begin_backward(), one backward, whose order is written down.
  void begin_learning(core::Step decided);
  core::Result<core::DeclaredOrder> end_learning();
  /// The session's program has another order by now. Before the first step.
  void follow_order() { read_program(); }

  /// Whether the unit's parameters are there, and in which slot of their pool; -1 where they are not in it.
  core::Result<int> slot_of(core::ParameterIndex parameter) const;
  /// Whether the trainer may have completed the parameter's gradient now, by UG-2.
  core::Result<void> may_complete_gradient(core::ParameterIndex parameter) const;

 private:
  struct Gather {
    core::PlanEntryIndex entry;
    std::int64_t ready = 0;
  };

  void read_program();
  int program_unit(core::UnitIndex unit) const { return static_cast<int>(unit.value) + resident_; }
  bool is_gathered(int unit) const;
  core::Result<void> has_unit(core::UnitIndex unit) const;
  core::Error is_over(core::UnitIndex unit) const;
  core::Result<void> pass(std::int64_t at);
  core::Result<void> pass_point(std::int64_t at);
  void end_lane_of(int unit, int round);
  bool adds_gradients(core::Phase phase) const {
    return phase == core::phase_of(core::gradient_pass(clock_.is_split()));
  }
  const std::vector<core::UnitPass>& passes() const { return in_.plan.inputs.passes; }
  /// The trainer may read the unit's parameters.
  void open(int unit);
  void close();
  core::Result<void> wait_published(int unit);
  core::Result<void> wait_published(core::BucketIndex bucket);
  core::Result<void> wait_resident(core::UnitIndex unit);
  core::Result<void> gather(int unit, core::Phase phase, int round);
  core::Result<void> wait_gradients(int unit, int round);
  void take_gradients(int unit, int round);
  core::Result<void> gather_for_evaluation(int unit);

  const SessionContext& in_;
  const RankProgram& program_;
  std::chrono::nanoseconds deadline_;
  Exposed exposed_;
  core::StepClock clock_;
  int resident_ = 0;  ///< units of the program before the declared ones
  std::uint32_t declared_ = 0;
  core::List<int, std::vector<core::BucketIndex>> buckets_;  ///< by unit of the program
  std::vector<Gather> gathers_;                              ///< as they are launched
  std::unordered_map<std::int64_t, std::vector<core::PlanEntryIndex>> gathers_for_;  ///< by who needs them

  core::Step step_{-1};
  core::Step decided_{-1};
  int round_ = -1;
  core::Phase phase_ = core::Phase::forward;
  std::size_t next_pass_ = 0;    ///< of a list: the one after that which has begun
  std::int64_t passed_ = -1;     ///< the last point that has ended
  std::size_t next_gather_ = 0;  ///< not asked for yet
  std::optional<int> open_;      ///< unit of the program that may be read
  int open_slot_ = -1;
  bool evaluating_ = false;
  std::optional<LearnedOrder> learned_;  ///< while it is learned
  std::uint64_t times_learned_ = 0;
  /// By slot of the pool of gradients: the unit that had it last, used or not, and in which lane.
  struct User {
    int unit = -1;
    core::Step step{};
    core::Lane lane{};  ///< as RankProgram::lane_or_end()

    friend bool operator==(const User&, const User&) = default;
  };
  core::List<int, User> gradient_users_;
};

}  // namespace troupe::actors
