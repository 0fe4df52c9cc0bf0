#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "actors/session/context.hpp"
#include "actors/session/lane_operations.hpp"
#include "actors/session/step_meter.hpp"
#include "actors/session/trainer_group.hpp"
#include "actors/session/unit_gate.hpp"
#include "actors/shell/tracer.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// A group without members is one of all ranks.
void complete_groups(std::vector<TrainerGroupSpec>& groups, core::WorldSize world);
/// What cannot be about the groups of a job.
core::Result<void> check_groups(const std::vector<TrainerGroupSpec>& groups, core::WorldSize world);
/// What ranks compare when they join: one line for each.
std::string configuration_of(const std::vector<TrainerGroupSpec>& groups);

/// The place of a launch among all of a session, if each step has `count` and this is the one at `index`.
constexpr std::int64_t place_of_launch(std::size_t count, core::Step step, std::size_t index) {
  return step.value * static_cast<std::int64_t>(count) + static_cast<std::int64_t>(index);
}

/// Posts the trainer's collectives, and decides where among those of the Conductor they come.
///
/// SQ-1: where devices run collectives in the order of their launches, an operation is posted after every
/// entry of the program that the trainer's calls before it have made ready, and before every other. So all
/// ranks launch in one order, which follows from the trainer's program alone.
class Sequencer {
 public:
  struct Settings {
    std::chrono::nanoseconds collective_deadline{};
    std::chrono::nanoseconds trainer_deadline{};
    bool in_launch_order = false;  ///< see SQ-1; otherwise groups do not wait for each other
    Tracer* tracer = nullptr;      ///< may be null
  };
  /// Everything given must outlive it.
  Sequencer(const SessionContext& context, const UnitGate& gate, StepMeter& meter, Settings settings);
  ~Sequencer();

  /// Before the first operation. The group is aborted by whoever owns it.
  core::Result<void> add(std::string name, gpu::Group& group, std::vector<core::Rank> members);
  /// Null: there is no group of this name.
  TrainerGroup* find(std::string_view name) const;
  /// The names of the groups, for messages: "tp, ep".
  std::string names() const;
  /// For messages: what the next operation of the group, which find() returned, is about.
  void describe_next(TrainerGroup& group, std::string what);
  void decided(core::Step step, bool committed);
  /// What is declared of it.
  LaneOperations& lane_operations() { return lane_operations_; }

 private:
  class Member;

  /// Waits until the Conductor has launched what comes before an operation that is posted now.
  core::Result<void> wait_turn();
  /// The place among all launches of the last entry that comes before; -1: none does.
  std::int64_t last_before() const;

  const SessionContext& in_;
  const UnitGate& gate_;
  StepMeter& meter_;
  Settings settings_;
  LaneOperations lane_operations_;
  std::vector<std::unique_ptr<Member>> members_;
  core::Step decided_{-1};  ///< the last one
  bool committed_ = true;
};

}  // namespace troupe::actors
