#include "core/program/check_programs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/program_race.hpp"
#include "core/program/program_text.hpp"
#include "core/program/recipes.hpp"

namespace troupe::core {
namespace {

/// Points that are not the program's, and orders that no rank can keep, would be errors of another kind.
Result<void> check_points(const CheckedRank& rank) {
  const Program& program = *rank.program;
  Result<void> found;
  for_each_launch(program, [&](const Launch& launch) {
    const ProgramEntry& entry = *launch.entry;
    const int units = program.unit_count();
    std::vector<TrainerPoint> points{entry.ready, entry.needed};
    if (entry.takes) points.push_back(entry.takes->point);
    if (entry.gives) points.push_back(entry.gives->point);
    for (const TrainerPoint& point : points) {
      if (!found || !is_of_unit(point.phase) || (point.unit >= 0 && point.unit < units)) continue;
      found = fail(Errc::internal, "{}: {} names '{}', but there are {} units", rank.name, describe(entry),
                   describe(point), units);
    }
    if (found && entry.stream >= program.streams) {
      found = fail(Errc::internal, "{}: {} is on stream {} of {}", rank.name, describe(entry), entry.stream,
                   program.streams);
    }
  });
  return found;
}

/// PR-4, of one program.
class FinalSums {
 public:
  explicit FinalSums(const CheckedRank& rank) : rank_(rank) {}

  Result<void> check() {
    for_each_launch(*rank_.program, [&](const Launch& launch) { take(*launch.entry); });
    TRY(found_);
    for (const TensorReference& tensor : order_) {
      auto& [reduced, sums] = tensors_[key(tensor)];
      if (sums.size() == 1) continue;
      return fail(Errc::mismatch, "PR-4: {} sums {} over {} {} times per step, not once", rank_.name,
                  describe(tensor), name_of(also_sum(tensor)->group), sums.size());
    }
    return check_order();
  }

 private:
  using Key = std::pair<int, int>;
  struct Launches {
    int reduced = -1;       ///< the last reduction
    std::vector<int> sums;  ///< over the group
  };

  static Key key(const TensorReference& tensor) { return {tensor.unit, tensor.tensor}; }

  std::optional<AlsoSum> also_sum(const TensorReference& tensor) const {
    const Program& program = *rank_.program;
    const auto& tensors = program.unit(tensor.unit).tensors;
    const auto index = static_cast<std::size_t>(tensor.tensor);
    return index < tensors.size() ? program.classes[tensors[index].tensor_class].also_sum : std::nullopt;
  }

  void take(const ProgramEntry& entry) {
    const int place = place_++;
    if (!found_ || entry.tensor.kind != TensorKind::gradients) return;
    const auto wanted = also_sum(entry.tensor);
    if (!is_also_sum(entry)) {
      if (!wanted || entry.operation == CollectiveKind::all_gather) return;
      Launches& known = tensors_[key(entry.tensor)];
      if (known.reduced < 0) order_.push_back(entry.tensor);
      known.reduced = place;
      return;
    }
    const bool fits = wanted && wanted->group == entry.group && wanted->members == entry.counts.members();
    if (!fits) {
      found_ = fail(Errc::mismatch, "PR-4: {} has a {} of {} members, which its class does not ask for",
                    rank_.name, describe(entry), entry.counts.members());
      return;
    }
    tensors_[key(entry.tensor)].sums.push_back(place);
  }

  Result<void> check_order() const {
    const auto reduced = [&](const TensorReference& tensor) { return tensors_.at(key(tensor)).reduced; };
    auto order = order_;
    std::sort(order.begin(), order.end(),
              [&](const auto& a, const auto& b) { return reduced(a) < reduced(b); });
    int before = -1;
    for (const TensorReference& tensor : order) {
      const int sum = tensors_.at(key(tensor)).sums.front();
      if (sum < reduced(tensor)) {
        return fail(Errc::mismatch, "PR-4: {} sums {} over {} before its last reduction", rank_.name,
                    describe(tensor), name_of(also_sum(tensor)->group));
      }
      if (sum < before) {
        return fail(
            Errc::mismatch,
            "PR-4: {} sums {} over {} before a tensor that is reduced earlier; sums come in the order "
            "of the reductions",
            rank_.name, describe(tensor), name_of(also_sum(tensor)->group));
      }
      before = sum;
    }
    return {};
  }

  const CheckedRank& rank_;
  Result<void> found_;
  int place_ = 0;
  std::map<Key, Launches> tensors_;
  std::vector<TensorReference> order_;  ///< that have to be summed
};

Result<void> check_credits(const ProgramRace& race) {
  for (const int r : race.job().ranks.indices()) {
    const auto& rank = race.rank(r);
    for (const auto pool : rank.free.indices()) {
      const int slots = rank.program->program->credits[place_of(pool)];
      if (rank.free[pool] == slots) continue;
      return fail(Errc::internal, "{} ends the step with {} free slots of the pool of {}, and began with {}",
                  race.job().ranks[r].name, rank.free[pool], name_of(pool), slots);
    }
  }
  return {};
}

}  // namespace

Result<void> check_programs(const CheckedJob& job) {
  std::set<const Program*> seen;
  for (const CheckedRank& rank : job.ranks) {
    if (!seen.insert(rank.program).second) continue;
    TRY(check_points(rank));
    if (const auto checked = check_operations(unfold(rank.program->operations), rank.program->clock(),
                                              rank.program->unit_count());
        !checked) {
      return fail(Errc::mismatch, "{}: {}", rank.name, checked.error().message);
    }
    TRY(FinalSums(rank).check());
    if (const auto checked = check_recipes(*rank.program); !checked) {
      return fail(checked.error().code, "{}: {}", rank.name, checked.error().message);
    }
    const CheckedRank& first = job.ranks.front();
    if (rank.program->ready_at_points == first.program->ready_at_points) continue;
    return fail(
        Errc::mismatch,
        "PR-6: of {} and {} one calls entries ready at the ends of points alone and the other does not: "
        "only one of them has collectives of its own on a device that runs all in launch order",
        first.name, rank.name);
  }
  ProgramRace race(job);
  TRY(race.run());
  if (!race.is_over()) return tl::unexpected<Error>(explain_standstill(race));
  return check_credits(race);
}

CheckedJob checked_job(const Mesh& mesh, const std::vector<const Program*>& programs) {
  CheckedJob job;
  std::set<GroupKind> kinds;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    job.ranks.push_back({fmt::format("rank {}", rank), programs[rank]});
    for (const auto& communicator : communicators(*programs[rank])) kinds.insert(communicator.group);
    for (const OperationRun& run : programs[rank]->operations) {
      for (const TrainerOperation& one : run.operations) kinds.insert(one.group);
    }
  }
  for (const GroupKind kind : kinds) {
    for (const auto& ranks : mesh.groups(kind)) {
      CheckedGroup group{.kind = kind, .members = {}, .size = static_cast<std::int64_t>(ranks.size())};
      for (const Rank rank : ranks) group.members.push_back(rank.value);
      job.groups.push_back(std::move(group));
    }
  }
  return job;
}

}  // namespace troupe::core
