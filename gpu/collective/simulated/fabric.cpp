#include "gpu/collective/simulated/fabric.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/simulated/fabric_group.hpp"

namespace troupe::gpu {
namespace {

class SimulatedGroup final : public Group {
 public:
  SimulatedGroup(std::shared_ptr<FabricGroup> meeting_place, int index)
      : meeting_place_(std::move(meeting_place)), index_(index) {}

  int index() const override { return index_; }
  int size() const override { return meeting_place_->size(); }
  const std::string& name() const override { return meeting_place_->name(); }

  core::Result<std::shared_ptr<OperationStatus>> post(Operation operation, StreamView stream) override {
    auto prepared = std::make_shared<const Operation>(TRY(prepare(std::move(operation), index_, size())));
    const MeetingKey key = next_key(*prepared);
    const std::string_view label = name_of(prepared->kind);
    auto status = std::make_shared<OperationStatus>();
    const auto queue = meeting_place_->queue_of(index_);
    const auto turn = queue ? queue->take() : 0;
    declare(*stream, *prepared);
    stream->enqueue_async(label, [place = meeting_place_, key, index = index_, queue, turn,
                                  operation = std::move(prepared), status](Completion completion) {
      if (!queue) return place->arrive(key, index, {operation, status, std::move(completion)});
      queue->begin(turn, [=] {
        place->arrive(key, index, {operation, status, [completion, queue] {
                                     completion();
                                     queue->end();
                                   }});
      });
    });
    return status;
  }

  void abort(core::Error reason) override { meeting_place_->fail(index_, std::move(reason)); }

 private:
  MeetingKey next_key(const Operation& operation) {
    const int peer = operation.peer;
    if (operation.kind == OperationKind::send) return {index_, peer, sent_[peer]++};
    if (operation.kind == OperationKind::receive) return {peer, index_, received_[peer]++};
    return {-1, -1, collectives_++};
  }

  // Shared with the other members and with the tasks on streams.
  std::shared_ptr<FabricGroup> meeting_place_;
  int index_;
  std::uint64_t collectives_ = 0;
  std::map<int, std::uint64_t> sent_;  ///< messages, by member
  std::map<int, std::uint64_t> received_;
};

}  // namespace

class SimulatedBackend final : public CollectiveBackend {
 public:
  explicit SimulatedBackend(SimulatedFabric& fabric) : fabric_(fabric) {}
  std::string_view name() const override { return "simulated"; }
  bool runs_in_launch_order() const override { return fabric_.model_->options.in_launch_order; }
  core::Result<std::unique_ptr<Group>> create_group(GroupOptions options) override {
    return fabric_.join(std::move(options));
  }

 private:
  SimulatedFabric& fabric_;
};

SimulatedFabric::SimulatedFabric(Timeline& timeline, FabricOptions options)
    : model_(std::make_shared<FabricModel>(timeline, options)) {}

SimulatedFabric::~SimulatedFabric() = default;

std::unique_ptr<CollectiveBackend> SimulatedFabric::backend() {
  return std::make_unique<SimulatedBackend>(*this);
}

core::Result<std::unique_ptr<Group>> SimulatedFabric::join(GroupOptions options) {
  const int index = TRY(index_of_self(options));
  std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
  auto& slot = groups_[fmt::format("{}/{}/{}", options.job, options.epoch.value, options.name)];
  auto group = slot.lock();
  if (!group) {
    group = std::make_shared<FabricGroup>(model_, options.name, options.members);
    slot = group;
  }
  if (group->ranks() != options.members) {
    return core::fail(core::Errc::mismatch, "group '{}': rank {} gives other members than rank {} did",
                      options.name, options.self.value, group->ranks().front().value);
  }
  if (!group->join(index)) {
    return core::fail(core::Errc::already_exists,
                      "group '{}': rank {} is a member already; new groups need a new epoch or name",
                      options.name, options.self.value);
  }
  return std::make_unique<SimulatedGroup>(std::move(group), index);
}

void SimulatedFabric::for_each_group_of(core::Rank rank, void (FabricGroup::*fault)(int)) {
  for (const auto& [key, weak] : groups_) {
    const auto group = weak.lock();
    if (!group) continue;
    const auto found = std::ranges::find(group->ranks(), rank);
    if (found == group->ranks().end()) continue;
    ((*group).*fault)(static_cast<int>(found - group->ranks().begin()));
  }
}

void SimulatedFabric::kill(core::Rank rank) {
  for_each_group_of(rank, &FabricGroup::kill);
}

void SimulatedFabric::hang(core::Rank rank) {
  for_each_group_of(rank, &FabricGroup::hang);
}

void SimulatedFabric::slow_down(core::Rank rank, double factor) {
  CHECK(factor > 0, "a slowdown factor is positive");
  model_->slowdowns[rank] = factor;
}

void SimulatedFabric::report_error(std::vector<core::Rank> ranks, core::Error error) {
  model_->planned_errors.push_back({std::move(ranks), std::move(error)});
}

}  // namespace troupe::gpu
