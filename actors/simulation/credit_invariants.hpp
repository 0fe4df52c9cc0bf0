#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/roles/work.hpp"
#include "core/ids.hpp"
#include "core/program/trainer_point.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Where a simulated trainer is, as reported by its own code: the runtime's view is not used.
struct TrainerPlace {
  core::Step step{};
  core::Phase phase = core::Phase::forward;  ///< forward or backward
  int round = 0;
  int unit = 0;  ///< the program's unit
};

/// Checks what one epoch's ranks launch and read against their programs: CO-1 launches of a stream are its
/// entries of a step, in order; UG-1 a unit is read only while it is gathered; CR-1 a slot of a pool has one
/// user at a time, which returns it when the program says, and after a step all are free.
///
/// Ranks whose trainer does not report where it is are not checked.
class CreditInvariants {
 public:
  /// `violate` takes a whole sentence that begins with the invariant's name.
  explicit CreditInvariants(std::function<void(std::string)> violate) : violate_(std::move(violate)) {}

  /// What the rank's trainer reports: that it has joined with this plan, whose order of units it may have to
  /// learn; that from now on it reads a unit's parameters, and in backward writes its gradients; that it no
  /// longer does so; that it has no lane left in the step; and that the step has ended.
  void joined(core::Rank rank, const TrainingPlan& plan, bool learns_order = false);
  /// Reports that the plan's order of units was learned, before the first step.
  void learned(core::Rank rank);
  void uses(core::Rank rank, const TrainerPlace& place);
  void leaves(core::Rank rank, const TrainerPlace& place);
  void finishes(core::Rank rank, core::Step step);
  void step_over(core::Rank rank, core::Step step);

  void on_message(core::Rank rank, const messages::Envelope& envelope);
  void on_work(const messages::Address& who, const Work& work);

 private:
  /// What matters here about a launch of the rank's program.
  struct Launch {
    std::string name;
    std::size_t stream = 0;
    int unit = 0;
    int slot = -1;           ///< in a pool; in the pool of gradients if `gives`
    bool brings = false;     ///< brings full parameters of a unit on demand
    bool takes = false;      ///< takes a slot of the pool of parameters
    bool gives = false;      ///< returns a slot of the pool of gradients
    bool publishes = false;  ///< skipped when a step is not committed
    std::int64_t needed = 0;
    std::int64_t until = 0;  ///< the slot it takes is returned when this point has ended
  };
  /// A moment of the trainer's clock, over all steps.
  using Moment = std::pair<core::Step, std::int64_t>;
  struct ParameterSlot {
    std::size_t launch = 0;
    Moment until;
  };
  struct GradientSlot {
    int unit = 0;
    core::Step step{};
  };
  /// What a stream launches next.
  struct Cursor {
    std::size_t place = 0;
    std::optional<core::Step> step;  ///< empty before the first launch
  };
  /// What a program says.
  struct Table {
    core::StepClock clock{0, 0};
    std::vector<Launch> launches;
    std::vector<std::vector<std::size_t>> streams;              ///< launches, in order
    std::map<std::int64_t, std::vector<std::size_t>> bringing;  ///< launches, by where they are needed
    std::vector<int> gradient_slots;  ///< by unit; -1: the unit has memory of its own
  };
  struct Watched {
    std::shared_ptr<const Table> table;    // shared by all ranks with the program
    std::optional<RankProgram> program{};  ///< while its order is to be learned: lives as long as its plan
    std::vector<Cursor> streams{};
    std::vector<std::optional<ParameterSlot>> parameters{};
    std::vector<std::optional<GradientSlot>> gradients{};
    std::vector<core::Step> done{};  ///< per launch, the last step in which it completed
    Moment passed{core::Step{-1}, 0};
    core::Step refused{-1};
  };

  static std::shared_ptr<const Table> read(const RankProgram& program);
  void follow(core::Rank rank, Watched& watched, const LaunchCollective& launch);
  void take(core::Rank rank, Watched& watched, const LaunchCollective& work);
  void check_read(core::Rank rank, const Watched& watched, const TrainerPlace& place);
  void take_gradients(core::Rank rank, Watched& watched, const TrainerPlace& place);

  std::function<void(std::string)> violate_;
  /// Null: the rank is not watched.
  Watched* find(core::Rank rank);
  Watched& at(core::Rank rank);

  std::vector<std::unique_ptr<Watched>> watched_;  ///< by rank
  std::vector<std::pair<core::Program, std::shared_ptr<const Table>>> tables_;
};

}  // namespace troupe::actors
