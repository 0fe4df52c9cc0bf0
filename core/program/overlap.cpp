#include "core/program/overlap.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/program/launch_cursor.hpp"

namespace troupe::core {
namespace {

/// The number of forwards and backwards before each point of a step.
std::vector<std::int64_t> work_before(const Program& program) {
  const StepClock clock = program.clock();
  std::vector<std::int64_t> before;
  std::vector<UnitUse> uses;
  for (int unit = 0; unit < program.unit_count(); ++unit) uses.push_back(program.unit(unit).use);
  std::int64_t count = 0;
  for (std::int64_t at = 0; at < clock.points(); ++at) {
    before.push_back(count);
    const TrainerPoint point = clock.point(at);
    const bool forward = point.phase == Phase::forward || point.phase == Phase::next_forward;
    if (!forward && point.phase != Phase::backward && point.phase != Phase::weights) continue;
    const UnitUse use = uses[static_cast<std::size_t>(point.unit)];
    const bool computes = forward ? use != UnitUse::none : use == UnitUse::forward_and_backward;
    count += computes ? 1 : 0;
  }
  return before;
}

/// For each launch of a step the first point that waits for it: the one that needs it, or needs what follows
/// it on its stream. The first gathers of the next step come last.
std::vector<std::int64_t> first_waiting(const Program& program) {
  const StepClock clock = program.clock();
  std::vector<std::int64_t> needed;
  std::vector<std::size_t> streams;
  std::vector<std::int64_t> behind(static_cast<std::size_t>(program.streams),
                                   std::numeric_limits<std::int64_t>::max());
  for_each_launch(program, [&](const Launch& launch) {
    const ProgramEntry& entry = *launch.entry;
    needed.push_back(clock.at(entry.needed, launch.round));
    streams.push_back(static_cast<std::size_t>(entry.stream));
    if (launch.round > 0 || entry.needed.phase != Phase::forward) return;
    auto& first = behind[streams.back()];
    first = std::min(first, clock.at({Phase::next_forward, entry.needed.unit}, 0));
  });
  for (std::size_t place = needed.size(); place-- > 0;) {
    auto& first = behind[streams[place]];
    first = needed[place] = std::min(needed[place], first);
  }
  return needed;
}

}  // namespace

OverlapCounts overlap_of(const Program& program) {
  const StepClock clock = program.clock();
  const auto before = work_before(program);
  const auto waited_for = first_waiting(program);
  OverlapCounts counts;
  std::size_t place = 0;
  for_each_launch(program, [&](const Launch& launch) {
    const ProgramEntry& entry = *launch.entry;
    const auto needed = static_cast<std::size_t>(waited_for[place++]);
    if (entry.tensor.kind == TensorKind::verdict) return;
    const auto ready = static_cast<std::size_t>(clock.at(entry.ready, launch.round));
    const std::int64_t hidden = needed > ready + 1 && before[needed] > before[ready + 1] ? 1 : 0;
    if (entry.tensor.kind == TensorKind::parameters) {
      ++counts.gathers;
      counts.hidden_gathers += hidden;
    } else if (entry.operation == CollectiveKind::reduce_scatter ||
               entry.operation == CollectiveKind::all_to_all) {
      ++counts.reductions;
      counts.hidden_reductions += hidden;
    } else {
      ++counts.all_reduces;
      counts.hidden_all_reduces += hidden;
    }
  });
  return counts;
}

}  // namespace troupe::core
