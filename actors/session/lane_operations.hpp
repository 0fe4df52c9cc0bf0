#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/planes/step/rank_program.hpp"
#include "actors/session/unit_gate.hpp"
#include "core/ids.hpp"
#include "core/program/trainer_operation.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// Holds a trainer to the collectives that it declared (SessionOptions::operations): in each microbatch of a
/// lane it posts on a group what was declared on it, all of it, in order, and where units come and go within
/// its unit and pass. Groups without declared operations are free, and so is what is posted
/// outside of lanes. What it refuses is Errc::invalid_argument, and changes nothing.
class LaneOperations {
 public:
  /// Both must outlive it.
  LaneOperations(const RankProgram& program, const UnitGate& gate) : program_(program), gate_(gate) {}

  /// A lane, with its first microbatch.
  void begin(core::Lane lane);
  /// The next microbatch of the lane.
  void begin_next();
  void end() { lane_.reset(); }
  /// That nothing declared is missing when `call` ends the microbatch.
  core::Result<void> may_end(std::string_view call) const;

  /// The member at `index` of a group is about to post. Says whether it may; posted() is told that it has.
  core::Result<void> may_post(const std::string& group, int index, const gpu::Operation& operation) const;
  void posted(const std::string& group);

 private:
  /// What a lane has on a group, in order, and how much of it was posted.
  struct Queue {
    std::vector<core::TrainerOperation> operations;
    std::size_t posted = 0;
  };

  /// The group's queue, if posts on it count now.
  const Queue* queue_of(const std::string& group) const;
  /// "all_to_all of u8, at most 4x96, in forward of unit 3", as the trainer numbers units.
  std::string describe(const core::TrainerOperation& declared) const;
  std::string where(const core::TrainerPoint& point) const;

  const RankProgram& program_;
  const UnitGate& gate_;
  std::map<std::string, Queue> queues_;  ///< by group
  std::optional<core::Lane> lane_;
};

}  // namespace troupe::actors
