#pragma once

#include <fmt/format.h>

#include <set>

#include "actors/planes/step/data_plane.hpp"

namespace troupe::actors {

/// The groups of all communicators of a plane's program, made with `backend`.
inline DataPlaneGroups groups_of_rank(gpu::CollectiveBackend& backend, const TrainingPlan& plan,
                                      const DataPlane& plane) {
  const auto rank = plane.program().rank();
  std::set<core::Communicator> communicators{{core::GroupKind::world, 0}};
  for (const auto& one : core::communicators(plane.program().program())) communicators.insert(one);
  DataPlaneGroups groups;
  for (const auto& communicator : communicators) {
    gpu::GroupOptions options{.job = "job", .epoch = {1}, .self = rank};
    options.members = plan.mesh.group(communicator.group, rank);
    options.name = fmt::format("{}-{}-{}", core::name_of(communicator.group), communicator.stream,
                               options.members.front().value);
    groups.owned.push_back(backend.create_group(std::move(options)).value());
    groups.of[communicator] = groups.owned.back().get();
  }
  return groups;
}

}  // namespace troupe::actors
