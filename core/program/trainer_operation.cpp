#include "core/program/trainer_operation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include "core/errors.hpp"
#include "core/program/repeats.hpp"

namespace troupe::core {
namespace {

/// Operations of a layer, in one direction, hardly ever are more.
constexpr std::size_t kLongestPattern = 24;

/// What tells every member how much the others will put in.
bool tells_counts(const TrainerOperation& operation) {
  const bool is_whole = operation.dtype == DType::i64 || operation.dtype == DType::i32;
  const bool reaches_all =
      operation.kind == CollectiveKind::all_gather || operation.kind == CollectiveKind::all_to_all;
  return is_whole && reaches_all && operation.counts.kind != CountKind::bounded;
}

}  // namespace

std::string describe(const TrainerOperation& operation) {
  return fmt::format("{} on {} in '{}'", name_of(operation.kind), name_of(operation.group),
                     describe(operation.point));
}

TrainerOperation shifted(TrainerOperation operation, int units) {
  operation.point = shifted(operation.point, units);
  return operation;
}

std::vector<OperationRun> fold(std::vector<TrainerOperation> operations) {
  std::stable_sort(
      operations.begin(), operations.end(), [](const TrainerOperation& a, const TrainerOperation& b) {
        return a.point.phase != b.point.phase ? a.point.phase < b.point.phase : a.point.unit < b.point.unit;
      });
  const auto step = [](const TrainerOperation& a, const TrainerOperation& b) {
    return b.point.unit - a.point.unit;
  };
  std::vector<OperationRun> runs;
  for (std::size_t first = 0; first < operations.size();) {
    const auto repeat = longest_repeat(operations, first, kLongestPattern, step,
                                       [&](std::size_t earlier, std::size_t later, int by) {
                                         return shifted(operations[earlier], by) == operations[later];
                                       });
    const auto begin = operations.begin() + static_cast<std::ptrdiff_t>(first);
    runs.push_back({{begin, begin + static_cast<std::ptrdiff_t>(repeat.period)},
                    static_cast<int>(repeat.times),
                    repeat.step});
    first += repeat.period * repeat.times;
  }
  return runs;
}

std::vector<TrainerOperation> unfold(const std::vector<OperationRun>& runs) {
  std::vector<TrainerOperation> operations;
  for (const OperationRun& run : runs) {
    for (int time = 0; time < run.times; ++time) {
      for (const TrainerOperation& one : run.operations) {
        operations.push_back(shifted(one, time * run.unit_step));
      }
    }
  }
  return operations;
}

std::vector<std::string> lines(const std::vector<OperationRun>& runs) {
  std::vector<std::string> found;
  if (!runs.empty()) found.emplace_back("the trainer's own, in each round:");
  for (const OperationRun& run : runs) {
    if (run.times > 1) found.push_back(fmt::format(" x{} unit{:+}:", run.times, run.unit_step));
    for (const TrainerOperation& one : run.operations) {
      found.push_back(fmt::format("  {} dtype={} counts={} {}", describe(one), name_of(one.dtype),
                                  name_of(one.counts.kind), one.counts.text()));
    }
  }
  return found;
}

Result<void> check_operations(const std::vector<TrainerOperation>& operations, const StepClock& clock,
                              int units) {
  std::vector<const TrainerOperation*> in_order;
  for (const TrainerOperation& one : operations) {
    const bool is_of_pass = one.point.phase == Phase::forward || one.point.phase == Phase::backward;
    if (!is_of_pass || one.point.round != 0 || one.point.unit < 0 || one.point.unit >= units) {
      return fail(Errc::invalid_argument,
                  "PR-5: {} is not in forward or backward of one of {} units of its round", describe(one),
                  units);
    }
    in_order.push_back(&one);
  }
  std::stable_sort(in_order.begin(), in_order.end(), [&](const auto* a, const auto* b) {
    return clock.at(a->point, 0) < clock.at(b->point, 0);
  });
  std::set<GroupKind> told;
  for (const TrainerOperation* one : in_order) {
    if (one->counts.kind == CountKind::bounded && !told.contains(one->group)) {
      return fail(Errc::invalid_argument,
                  "PR-5: {} has bounded counts, {}, and nothing in the round told the members of {} how much "
                  "it is; exchange counts first, by an all_gather or all_to_all of integers with even counts",
                  describe(*one), one->counts.text(), name_of(one->group));
    }
    if (tells_counts(*one)) told.insert(one->group);
  }
  return {};
}

}  // namespace troupe::core
