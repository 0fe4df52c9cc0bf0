#include "actors/session/lane_operations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

/// What members put in, by their places in the group.
using Given = std::vector<std::pair<std::size_t, std::size_t>>;

/// The members whose data this rank needs: all for all_gather, the root for broadcast, itself otherwise.
Given given(const gpu::Operation& operation, std::size_t index) {
  const auto elements = [&](std::size_t bytes) { return bytes / core::size_of(operation.dtype); };
  switch (operation.kind) {
    case gpu::OperationKind::all_gather: {
      Given all;
      const auto& counts = operation.input_counts;
      for (std::size_t member = 0; member < counts.size(); ++member) all.emplace_back(member, counts[member]);
      return all;
    }
    case gpu::OperationKind::all_to_all:
      return {{index, operation.input_counts.total()}};
    case gpu::OperationKind::reduce_scatter:
      return {{index, operation.output_counts.total()}};
    case gpu::OperationKind::broadcast:
      return {{static_cast<std::size_t>(operation.peer), elements(operation.output.bytes)}};
    case gpu::OperationKind::all_reduce:
    case gpu::OperationKind::send:
    case gpu::OperationKind::receive:
    case gpu::OperationKind::barrier:
      return {{index, elements(std::max(operation.input.bytes, operation.output.bytes))}};
  }
  CHECK(false, "every operation is handled");
}

bool fits(const core::Counts& declared, const Given& given) {
  return std::all_of(given.begin(), given.end(), [&](const auto& one) {
    const auto member = static_cast<std::int64_t>(one.first);
    if (member < 0 || member >= declared.members()) return false;
    const auto count = static_cast<std::int64_t>(one.second);
    return declared.kind == core::CountKind::bounded ? count <= declared.of(member)
                                                     : count == declared.of(member);
  });
}

}  // namespace

void LaneOperations::begin(core::Lane lane) {
  lane_ = lane;
  // The order of units that steps have is known by now.
  if (queues_.empty() && !program_.program().operations.empty()) {
    const auto clock = program_.clock();
    for (const auto& one : core::unfold(program_.program().operations)) {
      queues_[std::string(core::name_of(one.group))].operations.push_back(one);
    }
    for (auto& [group, queue] : queues_) {
      std::stable_sort(queue.operations.begin(), queue.operations.end(), [&](const auto& a, const auto& b) {
        return clock.at(a.point, 0) < clock.at(b.point, 0);
      });
    }
  }
  begin_next();
}

void LaneOperations::begin_next() {
  for (auto& [group, queue] : queues_) queue.posted = 0;
}

Result<void> LaneOperations::may_end(std::string_view call) const {
  if (!lane_) return {};
  for (const auto& [group, queue] : queues_) {
    const auto count = queue.operations.size();
    if (queue.posted == count) continue;
    return core::fail(
        Errc::invalid_argument,
        "{} was called in lane {} after {} of the {} operations that SessionOptions::operations "
        "declares on {}; post the next, {}, or do not declare it",
        call, lane_->value, queue.posted, count, group, describe(queue.operations[queue.posted]));
  }
  return {};
}

const LaneOperations::Queue* LaneOperations::queue_of(const std::string& group) const {
  const auto found = queues_.find(group);
  return lane_ && found != queues_.end() ? &found->second : nullptr;
}

Result<void> LaneOperations::may_post(const std::string& group, int index,
                                      const gpu::Operation& operation) const {
  const auto* queue = queue_of(group);
  if (queue == nullptr) return {};
  const bool is_surplus = queue->posted == queue->operations.size();
  const auto counts = given(operation, static_cast<std::size_t>(index));
  const auto place = gate_.place();
  const auto is = [&](const core::TrainerOperation& declared) {
    return core::name_of(declared.kind) == gpu::name_of(operation.kind) &&
           declared.dtype == operation.dtype && fits(declared.counts, counts) &&
           (!gate_.has_units() || place == declared.point);
  };
  if (!is_surplus && is(queue->operations[queue->posted])) return {};
  std::vector<std::size_t> shown;
  for (const auto& [member, count] : counts) shown.push_back(count);
  auto posted = fmt::format("{} of {}, {} elements", gpu::name_of(operation.kind),
                            core::name_of(operation.dtype), fmt::join(shown, ","));
  if (gate_.has_units()) posted += place ? ", in " + where(*place) : ", in no unit";
  if (is_surplus) {
    return core::fail(
        Errc::invalid_argument,
        "{} on {} was posted in lane {} after all {} operations that SessionOptions::operations "
        "declares on it; declare it, or leave it out",
        posted, group, lane_->value, queue->posted);
  }
  return core::fail(
      Errc::invalid_argument,
      "{} on {} was posted in lane {} where SessionOptions::operations declares operation {} of "
      "{}, {}; post what is declared, or declare what is posted",
      posted, group, lane_->value, queue->posted, queue->operations.size(),
      describe(queue->operations[queue->posted]));
}

void LaneOperations::posted(const std::string& group) {
  if (queue_of(group) != nullptr) queues_.at(group).posted += 1;
}

std::string LaneOperations::describe(const core::TrainerOperation& declared) const {
  auto text = fmt::format("{} of {}, {} elements", core::name_of(declared.kind),
                          core::name_of(declared.dtype), declared.counts.text());
  if (gate_.has_units()) text += ", in " + where(declared.point);
  return text;
}

std::string LaneOperations::where(const core::TrainerPoint& point) const {
  return core::describe(core::shifted(point, -gate_.resident_units()));
}

}  // namespace troupe::actors
