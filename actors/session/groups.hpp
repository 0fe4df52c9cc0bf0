#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "actors/planes/step/communication.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/session/expected_operations.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// Makes a session's process groups; all members of a group call it with the same name.
class GroupMaker {
 public:
  /// `deadline` applies to the meeting of a group's members. Everything given must outlive it.
  GroupMaker(RankWorld& world, gpu::Rendezvous& rendezvous, std::chrono::nanoseconds deadline)
      : world_(world), rendezvous_(rendezvous), deadline_(deadline) {}

  /// Groups of the step's collectives.
  core::Result<DataPlaneGroups> of_step(gpu::CollectiveBackend& backend, const TrainingPlan& plan,
                                        const RankProgram& program) const;
  /// One of the trainer's own groups.
  core::Result<std::unique_ptr<gpu::Group>> of_trainer(gpu::CollectiveBackend& backend,
                                                       const TrainingPlan& plan, const std::string& name,
                                                       std::vector<core::Rank> members) const;
  /// A group that moves host memory.
  core::Result<std::unique_ptr<gpu::Group>> of_hosts(std::string name, std::vector<core::Rank> members) const;

 private:
  core::Result<std::unique_ptr<gpu::Group>> make(gpu::CollectiveBackend& backend, std::string name,
                                                 std::vector<core::Rank> members,
                                                 const ExpectedOperations& expected) const;

  RankWorld& world_;
  gpu::Rendezvous& rendezvous_;
  std::chrono::nanoseconds deadline_;
};

}  // namespace troupe::actors
