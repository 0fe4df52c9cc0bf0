#include "actors/session/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/program/program_text.hpp"
#include "gpu/collective/expected.hpp"

namespace troupe::actors {

core::Result<std::unique_ptr<gpu::Group>> GroupMaker::make(gpu::CollectiveBackend& backend, std::string name,
                                                           std::vector<core::Rank> members,
                                                           const ExpectedOperations& expected) const {
  gpu::GroupOptions options;
  options.job = world_.job();
  options.epoch = world_.epoch();
  options.name = std::move(name);
  options.members = std::move(members);
  options.self = world_.rank();
  options.deadline = deadline_;
  options.recorder = world_.recorder();
  if (auto* const ahead = dynamic_cast<gpu::ConnectsAhead*>(&backend))
    ahead->expect(options.name, {expected.begin(), expected.end()});
  world_.log(Subsystem::collectives)
      .debug("group {} of {} ranks is made", options.name, options.members.size());
  return backend.create_group(std::move(options));
}

core::Result<std::unique_ptr<gpu::Group>> GroupMaker::of_trainer(gpu::CollectiveBackend& backend,
                                                                 const TrainingPlan& plan,
                                                                 const std::string& name,
                                                                 std::vector<core::Rank> members) const {
  auto full = fmt::format("trainer-{}-{}", name, members.front().value);
  const auto place = std::find(members.begin(), members.end(), world_.rank()) - members.begin();
  const auto expected =
      expected_of_trainer(plan, name, static_cast<int>(place), static_cast<int>(members.size()));
  return make(backend, std::move(full), std::move(members), expected);
}

core::Result<std::unique_ptr<gpu::Group>> GroupMaker::of_hosts(std::string name,
                                                               std::vector<core::Rank> members) const {
  auto* backend = TRY(world_.host_collectives(rendezvous_));
  return make(*backend, std::move(name), std::move(members), {});
}

core::Result<DataPlaneGroups> GroupMaker::of_step(gpu::CollectiveBackend& backend, const TrainingPlan& plan,
                                                  const RankProgram& program) const {
  // All members make their groups in the same order. The world comes last: it often shares another's group,
  // whose name is more specific.
  std::set<core::Communicator, std::greater<>> communicators{{core::GroupKind::world, 0}};
  for (const auto& communicator : core::communicators(program.program())) communicators.insert(communicator);
  using Place = std::pair<int, std::vector<core::Rank>>;  // stream and members
  std::map<Place, ExpectedOperations> expected;
  for (auto& [communicator, operations] : expected_of_step(program.program(), plan.mesh))
    expected[{communicator.stream, plan.mesh.group(communicator.group, world_.rank())}].merge(operations);
  DataPlaneGroups groups;
  std::map<Place, gpu::Group*> made;
  for (const auto& communicator : communicators) {
    auto members = plan.mesh.group(communicator.group, world_.rank());
    auto& group = made[{communicator.stream, members}];
    if (group == nullptr) {
      auto name = fmt::format("{}-{}-{}", core::name_of(communicator.group), communicator.stream,
                              members.front().value);
      const auto& operations = expected[{communicator.stream, members}];
      groups.owned.push_back(TRY(make(backend, std::move(name), std::move(members), operations)));
      group = groups.owned.back().get();
    }
    groups.of[communicator] = group;
  }
  return groups;
}

}  // namespace troupe::actors
