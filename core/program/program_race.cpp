#include "core/program/program_race.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/errors.hpp"
#include "core/program/launch_cursor.hpp"

namespace troupe::core {
namespace {

/// What members must agree on and do not.
std::optional<std::string> difference(const ProgramEntry& a, const ProgramEntry& b) {
  const auto differ = [](const char* what, const auto& one, const auto& two) {
    return fmt::format("{}: {} and {}", what, one, two);
  };
  if (a.operation != b.operation) return differ("operation", name_of(a.operation), name_of(b.operation));
  if (a.tensor != b.tensor && !(spans_stages(a) && spans_stages(b)))
    return differ("tensor", describe(a.tensor), describe(b.tensor));
  if (a.wire != b.wire) return differ("dtype", name_of(a.wire), name_of(b.wire));
  if (a.elements != b.elements) return differ("elements", a.elements, b.elements);
  if (a.counts != b.counts) return differ("counts", a.counts.text(), b.counts.text());
  if (a.chunk != b.chunk) return differ("chunk", a.chunk, b.chunk);
  if (a.averages != b.averages) return differ("averages", a.averages, b.averages);
  if (a.from != b.from || a.to != b.to) return std::string("placements");
  return std::nullopt;
}

std::optional<std::string> difference(const TrainerOperation& a, const TrainerOperation& b) {
  const auto differ = [](const char* what, const auto& one, const auto& two) {
    return fmt::format("{}: {} and {}", what, one, two);
  };
  if (a.kind != b.kind) return differ("operation", name_of(a.kind), name_of(b.kind));
  if (a.dtype != b.dtype) return differ("dtype", name_of(a.dtype), name_of(b.dtype));
  if (a.counts != b.counts) return differ("counts", a.counts.text(), b.counts.text());
  if (a.point != b.point) return differ("place", describe(a.point), describe(b.point));
  return std::nullopt;
}

std::size_t index_of(Pool pool) {
  return static_cast<std::size_t>(pool);
}

}  // namespace

CheckedProgram::CheckedProgram(const Program& of) : program(&of) {
  const StepClock clock = of.clock();
  const auto points = static_cast<std::size_t>(clock.points());
  needed_at.resize(points);
  borrowed_at.resize(points);
  returned_at.resize(points);
  streams.resize(static_cast<std::size_t>(std::max(of.streams, 1)));
  std::map<std::tuple<int, int, int>, int> last_writer;
  for_each_launch(of, [&](const Launch& launch) {
    const ProgramEntry& entry = *launch.entry;
    CheckedLaunch checked{.entry = entry};
    const auto index = static_cast<int>(launches.size());
    checked.ready = clock.at(entry.ready, launch.round);
    checked.needed = clock.at(entry.needed, launch.round);
    if (entry.takes) checked.returned = clock.at(entry.takes->point, launch.round);
    if (entry.gives) checked.borrowed = clock.at(entry.gives->point, launch.round);
    const auto stream = static_cast<std::size_t>(entry.stream);
    CHECK(stream < streams.size(), "an entry is on one of its program's streams");
    checked.on_stream = streams[stream].size();
    streams[stream].push_back(index);
    auto& group = groups[communicator_of(entry)];
    checked.on_group = group.size();
    group.push_back(index);
    const std::tuple<int, int, int> tensor{static_cast<int>(entry.tensor.kind), entry.tensor.unit,
                                           entry.tensor.tensor};
    const auto writer = last_writer.find(tensor);
    if (writer != last_writer.end() && !entry.from.empty() &&
        launches[static_cast<std::size_t>(writer->second)].entry.to == entry.from) {
      checked.input = writer->second;
    }
    last_writer[tensor] = index;
    const auto note = [&](std::vector<std::vector<int>>& at, std::int64_t point) {
      if (point >= 0) at[static_cast<std::size_t>(point)].push_back(index);
    };
    note(needed_at, checked.needed);
    note(borrowed_at, checked.borrowed);
    note(returned_at, checked.returned);
    launches.push_back(std::move(checked));
  });
  add_operations(clock);
}

void CheckedProgram::add_operations(const StepClock& clock) {
  const auto of_round = unfold(program->operations);
  for (int round = 0; round < program->rounds; ++round) {
    for (const TrainerOperation& one : of_round) {
      operations.push_back({.operation = one, .round = round, .at = clock.at(one.point, round)});
    }
  }
  std::stable_sort(operations.begin(), operations.end(),
                   [](const CheckedOperation& a, const CheckedOperation& b) { return a.at < b.at; });
  for (std::size_t i = 0; i < operations.size(); ++i) {
    auto& queue = operations_on[operations[i].operation.group];
    operations[i].on_group = queue.size();
    queue.push_back(static_cast<int>(i));
  }
}

ProgramRace::ProgramRace(const CheckedJob& job) : job_(&job), groups_(job.ranks.size()) {
  for (std::size_t g = 0; g < job.groups.size(); ++g) {
    for (const int member : job.groups[g].members) {
      groups_[static_cast<std::size_t>(member)][job.groups[g].kind] = static_cast<int>(g);
    }
  }
  for (const CheckedRank& rank : job.ranks) {
    const auto& program = programs_.try_emplace(rank.program, *rank.program).first->second;
    RankState state;
    state.program = &program;
    state.heads.resize(program.streams.size());
    state.launched.resize(program.launches.size());
    state.over.resize(program.launches.size());
    state.free = rank.program->credits;
    state.free.resize(kPools);
    ranks_.push_back(std::move(state));
  }
}

const CheckedGroup* ProgramRace::group_of(int rank, GroupKind kind) const {
  const auto& groups = groups_[static_cast<std::size_t>(rank)];
  const auto found = groups.find(kind);
  return found == groups.end() ? nullptr : &job_->groups[static_cast<std::size_t>(found->second)];
}

bool ProgramRace::is_over() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.at == static_cast<std::int64_t>(rank.program->needed_at.size()) &&
           std::all_of(rank.over.begin(), rank.over.end(), [](bool over) { return over; });
  });
}

std::optional<int> ProgramRace::trainer_waits_for(int index) const {
  const RankState& rank = ranks_[static_cast<std::size_t>(index)];
  const auto at = static_cast<std::size_t>(rank.at);
  if (at >= rank.program->needed_at.size()) return std::nullopt;
  for (const int launch : rank.program->needed_at[at]) {
    if (!rank.over[static_cast<std::size_t>(launch)]) return launch;
  }
  for (const int launch : rank.program->borrowed_at[at]) {
    const auto pool = rank.program->launches[static_cast<std::size_t>(launch)].entry.gives->pool;
    if (rank.free[index_of(pool)] > 0) continue;
    // A user that borrowed before and has not given back.
    for (std::size_t other = 0; other < rank.program->launches.size(); ++other) {
      const CheckedLaunch& holder = rank.program->launches[other];
      if (holder.borrowed >= 0 && holder.borrowed < rank.at && !rank.over[other] &&
          holder.entry.gives->pool == pool) {
        return static_cast<int>(other);
      }
    }
  }
  return std::nullopt;
}

const CheckedOperation& ProgramRace::operation_of(int index) const {
  const RankState& rank = ranks_[static_cast<std::size_t>(index)];
  return rank.program->operations[rank.met];
}

bool ProgramRace::lacks_credit(int index, int launch) const {
  const RankState& rank = ranks_[static_cast<std::size_t>(index)];
  const auto& entry = rank.program->launches[static_cast<std::size_t>(launch)].entry;
  return entry.takes && rank.free[index_of(entry.takes->pool)] == 0;
}

Result<bool> ProgramRace::advance_trainer(int index) {
  RankState& rank = ranks_[static_cast<std::size_t>(index)];
  bool moved = false;
  while (rank.at < static_cast<std::int64_t>(rank.program->needed_at.size())) {
    if (!rank.has_begun && !begin_point(rank)) return moved;
    const bool has_come = rank.has_come;
    const bool is_through = TRY(meet_operations(index));
    moved = moved || is_through || rank.has_come != has_come;
    if (!is_through) return moved;
    TRY(end_point(index));
  }
  return moved;
}

bool ProgramRace::begin_point(RankState& rank) {
  const CheckedProgram& program = *rank.program;
  const auto at = static_cast<std::size_t>(rank.at);
  for (const int launch : program.needed_at[at]) {
    if (!rank.over[static_cast<std::size_t>(launch)]) return false;
  }
  std::vector<int> wanted(kPools);
  for (const int launch : program.borrowed_at[at]) {
    ++wanted[index_of(program.launches[static_cast<std::size_t>(launch)].entry.gives->pool)];
  }
  for (std::size_t pool = 0; pool < kPools; ++pool) {
    if (rank.free[pool] < wanted[pool]) return false;
  }
  for (std::size_t pool = 0; pool < kPools; ++pool) rank.free[pool] -= wanted[pool];
  rank.has_begun = true;
  return true;
}

Result<bool> ProgramRace::meet_operations(int index) {
  RankState& rank = ranks_[static_cast<std::size_t>(index)];
  const auto& operations = rank.program->operations;
  while (rank.met < operations.size() && operations[rank.met].at == rank.at) {
    if (rank.has_come) return false;
    rank.has_come = true;
    TRY(arrive_at_operation(index));
  }
  return true;
}

Result<void> ProgramRace::end_point(int index) {
  RankState& rank = ranks_[static_cast<std::size_t>(index)];
  for (const int launch : rank.program->returned_at[static_cast<std::size_t>(rank.at)]) {
    const auto& credit = *rank.program->launches[static_cast<std::size_t>(launch)].entry.takes;
    if (!rank.launched[static_cast<std::size_t>(launch)]) {
      return fail(Errc::internal,
                  "{} gives back its slot at the end of '{}', before it was launched; let the point need "
                  "the entry",
                  name_launch(*this, index, launch), describe(credit.point));
    }
    ++rank.free[index_of(credit.pool)];
  }
  ++rank.at;
  rank.has_begun = false;
  return {};
}

Result<bool> ProgramRace::advance_stream(int index, std::size_t stream) {
  RankState& rank = ranks_[static_cast<std::size_t>(index)];
  const auto& queue = rank.program->streams[stream];
  if (rank.heads[stream] == queue.size()) return false;
  const int launch = queue[rank.heads[stream]];
  const CheckedLaunch& head = rank.program->launches[static_cast<std::size_t>(launch)];
  if (rank.launched[static_cast<std::size_t>(launch)] || rank.at <= head.ready) return false;
  if (head.input >= 0 && !rank.over[static_cast<std::size_t>(head.input)]) return false;
  if (lacks_credit(index, launch)) return false;
  if (head.entry.takes) --rank.free[index_of(head.entry.takes->pool)];
  rank.launched[static_cast<std::size_t>(launch)] = true;
  TRY(arrive(index, launch));
  return true;
}

template <class Name>
Result<const CheckedGroup*> ProgramRace::group_for(int index, GroupKind kind, const Counts& counts,
                                                   const Name& name) const {
  const CheckedGroup* group = group_of(index, kind);
  if (group == nullptr) return fail(Errc::mismatch, "{} is for a group that it is not in", name());
  if (counts.members() == group->size) return group;
  return fail(Errc::mismatch, "{} has counts of {} members, but the group has {}", name(), counts.members(),
              group->size);
}

Result<void> ProgramRace::arrive(int index, int launch) {
  const CheckedLaunch& own =
      ranks_[static_cast<std::size_t>(index)].program->launches[static_cast<std::size_t>(launch)];
  const auto communicator = communicator_of(own.entry);
  const CheckedGroup* group = TRY(
      group_for(index, own.entry.group, own.entry.counts, [&] { return name_launch(*this, index, launch); }));
  const auto key = std::pair{static_cast<int>(group - job_->groups.data()), own.entry.stream};
  Meeting& meeting = meetings_[key].try_emplace(own.on_group, Meeting{index, 0}).first->second;
  if (meeting.arrived > 0) TRY(compare(index, launch, meeting.first_rank));
  if (++meeting.arrived < group->members.size()) return {};
  meetings_[key].erase(own.on_group);
  finish(*group, communicator, own.on_group);
  return {};
}

Result<void> ProgramRace::arrive_at_operation(int index) {
  const RankState& rank = ranks_[static_cast<std::size_t>(index)];
  const CheckedOperation& own = operation_of(index);
  const CheckedGroup* group = TRY(group_for(index, own.operation.group, own.operation.counts, [&] {
    return name_operation(*this, index, static_cast<int>(rank.met));
  }));
  auto& meetings = operations_[static_cast<int>(group - job_->groups.data())];
  Meeting& meeting = meetings.try_emplace(own.on_group, Meeting{index, 0}).first->second;
  if (meeting.arrived > 0) TRY(compare_operations(index, meeting.first_rank));
  if (++meeting.arrived < group->members.size()) return {};
  meetings.erase(own.on_group);
  for (const int member : group->members) {
    RankState& over = ranks_[static_cast<std::size_t>(member)];
    over.met += 1;
    over.has_come = false;
  }
  return {};
}

/// Both trainers have come to the operation.
Result<void> ProgramRace::compare_operations(int index, int other) const {
  const CheckedProgram& ours = *ranks_[static_cast<std::size_t>(index)].program;
  const CheckedProgram& theirs = *ranks_[static_cast<std::size_t>(other)].program;
  if (&ours == &theirs) return {};
  const CheckedOperation& own = operation_of(index);
  const CheckedOperation& met = operation_of(other);
  const auto differs = difference(met.operation, own.operation);
  if (!differs) return {};
  const auto& our_queue = ours.operations_on.at(own.operation.group);
  std::string hint;
  for (std::size_t k = own.on_group + 1; k < our_queue.size(); ++k) {
    if (difference(met.operation, ours.operations[static_cast<std::size_t>(our_queue[k])].operation))
      continue;
    hint =
        fmt::format("; one of them has changed places with {}", name_operation(*this, index, our_queue[k]));
    break;
  }
  return fail(Errc::mismatch, "{} meets {}; they differ in {}{}",
              name_operation(*this, other, static_cast<int>(rank(other).met)),
              name_operation(*this, index, static_cast<int>(rank(index).met)), *differs, hint);
}

void ProgramRace::finish(const CheckedGroup& group, const Communicator& communicator, std::size_t place) {
  for (const int member : group.members) {
    RankState& rank = ranks_[static_cast<std::size_t>(member)];
    const int launch = rank.program->groups.at(communicator)[place];
    const CheckedLaunch& done = rank.program->launches[static_cast<std::size_t>(launch)];
    rank.over[static_cast<std::size_t>(launch)] = true;
    rank.heads[static_cast<std::size_t>(done.entry.stream)] = done.on_stream + 1;
    if (done.entry.gives) ++rank.free[index_of(done.entry.gives->pool)];
  }
}

Result<void> ProgramRace::compare(int index, int launch, int other) const {
  const CheckedProgram& ours = *ranks_[static_cast<std::size_t>(index)].program;
  const CheckedProgram& theirs = *ranks_[static_cast<std::size_t>(other)].program;
  if (&ours == &theirs) return {};
  const CheckedLaunch& own = ours.launches[static_cast<std::size_t>(launch)];
  const auto communicator = communicator_of(own.entry);
  const auto& our_queue = ours.groups.at(communicator);
  const auto& their_queue = theirs.groups.at(communicator);
  const std::size_t place = own.on_group;
  const auto& met = theirs.launches[static_cast<std::size_t>(their_queue[place])].entry;
  const auto differs = difference(met, own.entry);
  if (!differs) return {};
  std::string hint;
  for (std::size_t k = place + 1; k < std::min(our_queue.size(), their_queue.size()); ++k) {
    const auto& our_later = ours.launches[static_cast<std::size_t>(our_queue[k])].entry;
    const auto& their_later = theirs.launches[static_cast<std::size_t>(their_queue[k])].entry;
    if (difference(met, our_later) || difference(their_later, own.entry)) continue;
    hint = fmt::format("; one of them has changed places with {}", name_launch(*this, index, our_queue[k]));
    break;
  }
  return fail(Errc::mismatch, "{} meets {}; they differ in {}{}",
              name_launch(*this, other, their_queue[place]), name_launch(*this, index, launch), *differs,
              hint);
}

Result<void> ProgramRace::run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      moved = TRY(advance_trainer(rank)) || moved;
      for (std::size_t stream = 0; stream < ranks_[static_cast<std::size_t>(rank)].heads.size(); ++stream) {
        moved = TRY(advance_stream(rank, stream)) || moved;
      }
    }
  }
  return {};
}

std::string name_operation(const ProgramRace& race, int rank, int operation) {
  const auto& one = race.rank(rank).program->operations[static_cast<std::size_t>(operation)];
  return fmt::format("{}'s operation {}, {} of round {}",
                     race.job().ranks[static_cast<std::size_t>(rank)].name, operation,
                     describe(one.operation), one.round);
}

std::string name_launch(const ProgramRace& race, int rank, int launch) {
  const auto& entry = race.rank(rank).program->launches[static_cast<std::size_t>(launch)].entry;
  return fmt::format("{}'s entry {}, {} on {}", race.job().ranks[static_cast<std::size_t>(rank)].name, launch,
                     describe(entry), describe(communicator_of(entry)));
}

}  // namespace troupe::core
