#pragma once

#include <map>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/session/trainer_group.hpp"
#include "apps/pipeline/runner.hpp"

namespace troupe::apps {

/// Groups of two for every link between stages: a group of the trainer's has one stream, and messages to
/// different stages, or in different directions, must not wait for each other. `wraps`: the last stage sends
/// to the first, as in interleaved schedules. Stages are the ranks' highest digit (core/plan/mesh.hpp).
std::vector<actors::TrainerGroupSpec> link_groups(core::WorldSize world, int stages, bool wraps);

/// The links of one rank over its session's groups.
class SessionLinks final : public StageLinks {
 public:
  /// The session was joined with link_groups(). `dtype` is that of the rows.
  static core::Result<SessionLinks> open(actors::Session& session, int stages, int stage, bool wraps,
                                         core::DType dtype = core::DType::f32);

  core::Result<Posted> send(const core::ScheduleLink& link, const StageRows& rows) override;
  core::Result<Posted> receive(const core::ScheduleLink& link, const StageRows& rows) override;
  core::Result<void> wait(const core::ScheduleLink& link, Posted posted) override;

 private:
  actors::TrainerGroup& group(const core::ScheduleLink& link) { return *groups_.at(link); }

  std::map<core::ScheduleLink, actors::TrainerGroup*> groups_;
  core::DType dtype_ = core::DType::f32;
};

}  // namespace troupe::apps
