#include "core/program/check_programs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/errors.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/program_race.hpp"
#include "core/program/program_text.hpp"

namespace troupe::core {
namespace {

/// Points that are none of the program's, and orders that no rank can keep, would be errors of another kind.
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

Result<void> check_credits(const ProgramRace& race) {
  for (int r = 0; r < static_cast<int>(race.job().ranks.size()); ++r) {
    const auto& rank = race.rank(r);
    for (std::size_t pool = 0; pool < rank.program->program->credits.size(); ++pool) {
      const int slots = rank.program->program->credits[pool];
      if (rank.free[pool] == slots) continue;
      return fail(Errc::internal, "{} ends the step with {} free slots of the pool of {}, and began with {}",
                  race.job().ranks[static_cast<std::size_t>(r)].name, rank.free[pool],
                  name_of(static_cast<Pool>(pool)), slots);
    }
  }
  return {};
}

}  // namespace

Result<void> check_programs(const CheckedJob& job) {
  std::set<const Program*> seen;
  for (const CheckedRank& rank : job.ranks) {
    if (seen.insert(rank.program).second) TRY(check_points(rank));
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
