#include "actors/session/work_router.hpp"

#include <variant>

#include "actors/roles/machine.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using messages::Role;

void WorkRouter::perform(const messages::Address& from, const Work& work) const {
  auto to_plane = Overloaded{[&](const StepWork& w) { planes_.step.perform(w); },
                             [&](const CheckpointWork& w) { perform(from.role, w); },
                             [&](const ReplicaWork& w) {
                               CHECK(planes_.local, "only a rank with a local tier exchanges copies");
                               planes_.local->perform(w);
                             },
                             [&](const ExpertWork& w) {
                               CHECK(planes_.experts, "only a rank with layers of experts moves rows");
                               planes_.experts->perform(w);
                             },
                             [&](const AbortCollectives& w) { abort(messages::error_of(w.reason)); }};
  std::visit(to_plane, work);
}

/// The writer of local copies asks for the same work as the writer of checkpoints, but of its own plane.
void WorkRouter::perform(Role from, const CheckpointWork& work) const {
  if (from == Role::local_writer) {
    CHECK(planes_.local, "only a rank with a local tier writes local copies");
    planes_.local->perform(work);
  } else {
    CHECK(planes_.checkpoint, "only a rank with a place for checkpoints writes them");
    planes_.checkpoint->perform(work);
  }
}

/// Ends every group of the rank, whatever it carries.
void WorkRouter::abort(const core::Error& reason) const {
  if (planes_.hosts) planes_.hosts->abort(reason);
  if (planes_.local) planes_.local->abort(reason);
  if (planes_.replicas) planes_.replicas->abort(reason);
  planes_.step.abort(reason);
}

}  // namespace troupe::actors
