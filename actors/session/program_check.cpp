#include "actors/session/program_check.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/program/check_programs.hpp"
#include "core/program/job_programs.hpp"
#include "core/program/job_slices.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/program_file.hpp"

namespace troupe::actors {

namespace {

using core::Program;

/// A check goes through about a million launches per second; beyond this many the ranks would wait for it.
constexpr std::int64_t kMostLaunches = 20'000'000;

/// The programs of all ranks, equal ones once.
class ProgramsOfRanks {
 public:
  /// `places` of a part: for each place in domain 0 the program of the rank there, if it belongs to this
  /// part.
  void add(core::Rank first_of_part, const core::JobPrograms& part) {
    auto& known = parts_[first_of_part];
    known.sizes = part.sizes;
    std::vector<const Program*> programs;
    for (const auto& program : part.programs) programs.push_back(keep(program));
    for (const int index : part.of_place) known.of_place.push_back(programs[static_cast<std::size_t>(index)]);
  }

  std::vector<const Program*> of_all(const TrainingPlan& plan) const {
    std::vector<const Program*> programs;
    for (std::int32_t rank = 0; rank < plan.world.value; ++rank) {
      const auto& part = parts_.at(plan.first_of_part({rank}));
      std::size_t place = 0;
      const auto coordinates = plan.coordinates({rank});
      for (std::size_t axis = 0; axis < coordinates.size(); ++axis)
        place =
            place * static_cast<std::size_t>(part.sizes[axis]) + static_cast<std::size_t>(coordinates[axis]);
      programs.push_back(part.of_place[place]);
    }
    return programs;
  }

 private:
  struct Part {
    std::vector<int> sizes;
    std::vector<const Program*> of_place;
  };

  const Program* keep(const Program& program) {
    // They differ in whose they are, which does not matter here.
    const auto is_alike = [&](Program known) {
      known.coordinates = program.coordinates;
      return known == program;
    };
    const auto found = std::find_if(programs_.begin(), programs_.end(), is_alike);
    return found != programs_.end() ? &*found : &programs_.emplace_back(program);
  }

  std::deque<Program> programs_;
  std::map<core::Rank, Part> parts_;
};

std::int64_t launches_of(const core::CheckedJob& job) {
  std::map<const Program*, std::int64_t> known;
  std::int64_t launches = 0;
  for (const auto& rank : job.ranks) {
    const auto [found, is_new] = known.try_emplace(rank.program, 0);
    if (is_new) core::for_each_launch(*rank.program, [&](const auto&) { found->second += 1; });
    launches += found->second;
  }
  return launches;
}

std::string key_of_part(const std::string& prefix, core::Rank first_of_part) {
  return fmt::format("{}{}", prefix, first_of_part.value);
}

core::Result<void> check(const SessionContext& in, const std::string& prefix) {
  ProgramsOfRanks programs;
  std::map<core::Rank, bool> is_known;
  for (std::int32_t rank = 0; rank < in.plan.world.value; ++rank) {
    const auto first = in.plan.first_of_part({rank});
    if (std::exchange(is_known[first], true)) continue;
    if (first == in.rank()) {
      programs.add(first, TRY(core::plan_all(in.plan.inputs)));
      continue;
    }
    const auto text = TRY(in.rendezvous.get(key_of_part(prefix, first), in.options.join_deadline));
    auto parsed = TRY(core::parse_program_file(text));
    const core::NamedProgramFile file{fmt::format("rank {}", first.value), std::move(parsed)};
    programs.add(first, TRY(core::join_files({&file, 1})));
  }
  const auto job = core::checked_slices(in.plan.mesh, programs.of_all(in.plan));
  const auto log = in.world.log(Subsystem::session);
  const auto launches = launches_of(job);
  if (launches > kMostLaunches) {
    log.warning(
        "the ranks' programs are not run against each other: {} launches are too many, the limit is {}",
        launches, kMostLaunches);
    return {};
  }
  const auto checked = core::check_programs(job);
  log.debug("{} ranks with {} launches stand for all {} in the check of their programs", job.ranks.size(),
            launches, in.plan.world.value);
  return checked;
}

/// "0 ok" or the code and the message.
std::string text_of(const core::Result<void>& verdict) {
  if (verdict) return "0 ";
  return fmt::format("{} {}", static_cast<int>(verdict.error().code) + 1, verdict.error().message);
}

core::Result<void> verdict_of(const std::string& text) {
  const auto space = std::min(text.find(' '), text.size());
  const auto code = TRY(core::parse_number<int>(std::string_view(text).substr(0, space), {0, 255}));
  if (code == 0) return {};
  return core::fail(static_cast<core::Errc>(code - 1), "the ranks' programs do not fit together: {}",
                    std::string_view(text).substr(std::min(space + 1, text.size())));
}

}  // namespace

core::Result<void> check_programs_of_ranks(const SessionContext& in, std::uint64_t attempt) {
  if (in.plan.world.value == 1) return {};
  const auto prefix = fmt::format("programs/{}/", attempt);
  if (in.is_first_rank()) {
    TRY(in.rendezvous.set(prefix + "verdict", text_of(check(in, prefix))));
  } else if (in.plan.first_of_part(in.rank()) == in.rank()) {
    const auto all = TRY(core::plan_all(in.plan.inputs));
    TRY(in.rendezvous.set(key_of_part(prefix, in.rank()), core::to_text(core::file_of(all))));
  }
  const auto verdict = verdict_of(TRY(in.rendezvous.get(prefix + "verdict", in.options.join_deadline)));
  if (!verdict) in.end_reading(prefix);
  return verdict;
}

}  // namespace troupe::actors
