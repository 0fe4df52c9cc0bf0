#include "actors/session/groups.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

core::Result<std::unique_ptr<gpu::Group>> GroupMaker::make(gpu::CollectiveBackend& backend, std::string name,
                                                           std::vector<core::Rank> members) const {
  gpu::GroupOptions options;
  options.job = world_.job();
  options.epoch = world_.epoch();
  options.name = std::move(name);
  options.members = std::move(members);
  options.self = world_.rank();
  options.deadline = deadline_;
  return backend.create_group(std::move(options));
}

core::Result<std::unique_ptr<gpu::Group>> GroupMaker::of_hosts(std::string name,
                                                               std::vector<core::Rank> members) const {
  auto* backend = TRY(world_.host_collectives(rendezvous_));
  return make(*backend, std::move(name), std::move(members));
}

core::Result<DataPlaneGroups> GroupMaker::of_step(gpu::CollectiveBackend& backend,
                                                  const TrainingPlan& plan) const {
  const auto rank = world_.rank();
  DataPlaneGroups groups;
  groups.all = TRY(make(backend, "dp", plan.mesh.group(core::GroupKind::dp_cp, rank)));
  if (plan.options.optimizer_instances > 1) {
    auto inner = plan.mesh.group(core::GroupKind::intra_dp_cp, rank);
    auto outer = plan.mesh.group(core::GroupKind::inter_instance, rank);
    const int instance = rank.value / plan.shards();
    const int position = rank.value % plan.shards();
    groups.inner = TRY(make(backend, fmt::format("dp-inner-{}", instance), std::move(inner)));
    groups.outer = TRY(make(backend, fmt::format("dp-outer-{}", position), std::move(outer)));
  }
  return groups;
}

}  // namespace troupe::actors
