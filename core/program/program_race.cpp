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
    const int index = launches.end_index();
    checked.ready = clock.at(entry.ready, launch.round);
    checked.needed = clock.at(entry.needed, launch.round);
    if (entry.takes) checked.returned = clock.at(entry.takes->point, launch.round);
    if (entry.gives) checked.borrowed = clock.at(entry.gives->point, launch.round);
    CHECK(entry.stream < streams.end_index(), "an entry is on one of its program's streams");
    auto& stream = streams[entry.stream];
    checked.on_stream = stream.size();
    stream.push_back(index);
    auto& group = groups[communicator_of(entry)];
    checked.on_group = group.size();
    group.push_back(index);
    const std::tuple<int, int, int> tensor{static_cast<int>(entry.tensor.kind), entry.tensor.unit,
                                           entry.tensor.tensor};
    const auto writer = last_writer.find(tensor);
    if (writer != last_writer.end() && !entry.from.empty() &&
        launches[writer->second].entry.to == entry.from) {
      checked.input = writer->second;
    }
    last_writer[tensor] = index;
    const auto note = [&](List<std::int64_t, std::vector<int>>& at, std::int64_t point) {
      if (point >= 0) at[point].push_back(index);
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
  for (const int i : operations.indices()) {
    auto& queue = operations_on[operations[i].operation.group];
    operations[i].on_group = queue.size();
    queue.push_back(i);
  }
}

ProgramRace::ProgramRace(const CheckedJob& job) : job_(&job), groups_(job.ranks.size()) {
  for (std::size_t g = 0; g < job.groups.size(); ++g) {
    for (const int member : job.groups[g].members) {
      groups_[member][job.groups[g].kind] = static_cast<int>(g);
    }
  }
  for (const CheckedRank& rank : job.ranks) {
    const auto& program = programs_.try_emplace(rank.program, *rank.program).first->second;
    RankState state;
    state.program = &program;
    state.heads.resize(program.streams.size());
    state.launched.resize(program.launches.size());
    state.over.resize(program.launches.size());
    state.free = List<Pool, int>(rank.program->credits);
    state.free.resize(kPools);
    ranks_.push_back(std::move(state));
  }
}

const CheckedGroup* ProgramRace::group_of(int rank, GroupKind kind) const {
  const auto& groups = groups_[rank];
  const auto found = groups.find(kind);
  return found == groups.end() ? nullptr : &job_->groups[static_cast<std::size_t>(found->second)];
}

bool ProgramRace::is_over() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.at == rank.program->needed_at.end_index() &&
           std::all_of(rank.over.begin(), rank.over.end(), [](bool over) { return over; });
  });
}

std::optional<int> ProgramRace::trainer_waits_for(int index) const {
  const RankState& rank = ranks_[index];
  if (rank.at >= rank.program->needed_at.end_index()) return std::nullopt;
  for (const int launch : rank.program->needed_at[rank.at]) {
    if (!rank.over[launch]) return launch;
  }
  for (const int launch : rank.program->borrowed_at[rank.at]) {
    const auto pool = rank.program->launches[launch].entry.gives->pool;
    if (rank.free[pool] > 0) continue;
    // A user that borrowed before and has not given back.
    for (const int other : rank.program->launches.indices()) {
      const CheckedLaunch& holder = rank.program->launches[other];
      if (holder.borrowed >= 0 && holder.borrowed < rank.at && !rank.over[other] &&
          holder.entry.gives->pool == pool) {
        return other;
      }
    }
  }
  return std::nullopt;
}

const CheckedOperation& ProgramRace::operation_of(int index) const {
  const RankState& rank = ranks_[index];
  return rank.program->operations[rank.met];
}

bool ProgramRace::lacks_credit(int index, int launch) const {
  const RankState& rank = ranks_[index];
  const auto& entry = rank.program->launches[launch].entry;
  return entry.takes && rank.free[entry.takes->pool] == 0;
}

Result<bool> ProgramRace::advance_trainer(int index) {
  RankState& rank = ranks_[index];
  bool moved = false;
  while (rank.at < rank.program->needed_at.end_index()) {
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
  for (const int launch : program.needed_at[rank.at]) {
    if (!rank.over[launch]) return false;
  }
  List<Pool, int> wanted(kPools);
  for (const int launch : program.borrowed_at[rank.at]) {
    ++wanted[program.launches[launch].entry.gives->pool];
  }
  for (const auto pool : wanted.indices()) {
    if (rank.free[pool] < wanted[pool]) return false;
  }
  for (const auto pool : wanted.indices()) rank.free[pool] -= wanted[pool];
  rank.has_begun = true;
  return true;
}

Result<bool> ProgramRace::meet_operations(int index) {
  RankState& rank = ranks_[index];
  const auto& operations = rank.program->operations;
  while (rank.met < operations.end_index() && operations[rank.met].at == rank.at) {
    if (rank.has_come) return false;
    rank.has_come = true;
    TRY(arrive_at_operation(index));
  }
  return true;
}

Result<void> ProgramRace::end_point(int index) {
  RankState& rank = ranks_[index];
  for (const int launch : rank.program->returned_at[rank.at]) {
    const auto& credit = *rank.program->launches[launch].entry.takes;
    if (!rank.launched[launch]) {
      return fail(Errc::internal,
                  "{} gives back its slot at the end of '{}', before it was launched; let the point need "
                  "the entry",
                  name_launch(*this, index, launch), describe(credit.point));
    }
    ++rank.free[credit.pool];
  }
  ++rank.at;
  rank.has_begun = false;
  return {};
}

Result<bool> ProgramRace::advance_stream(int index, int stream) {
  RankState& rank = ranks_[index];
  const auto& queue = rank.program->streams[stream];
  if (rank.heads[stream] == queue.size()) return false;
  const int launch = queue[rank.heads[stream]];
  const CheckedLaunch& head = rank.program->launches[launch];
  if (rank.launched[launch] || rank.at <= head.ready) return false;
  if (head.input >= 0 && !rank.over[head.input]) return false;
  if (lacks_credit(index, launch)) return false;
  if (head.entry.takes) --rank.free[head.entry.takes->pool];
  rank.launched[launch] = true;
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
  const CheckedLaunch& own = ranks_[index].program->launches[launch];
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
  const RankState& rank = ranks_[index];
  const CheckedOperation& own = operation_of(index);
  const CheckedGroup* group = TRY(group_for(index, own.operation.group, own.operation.counts,
                                            [&] { return name_operation(*this, index, rank.met); }));
  auto& meetings = operations_[static_cast<int>(group - job_->groups.data())];
  Meeting& meeting = meetings.try_emplace(own.on_group, Meeting{index, 0}).first->second;
  if (meeting.arrived > 0) TRY(compare_operations(index, meeting.first_rank));
  if (++meeting.arrived < group->members.size()) return {};
  meetings.erase(own.on_group);
  for (const int member : group->members) {
    RankState& over = ranks_[member];
    over.met += 1;
    over.has_come = false;
  }
  return {};
}

/// Both trainers have come to the operation.
Result<void> ProgramRace::compare_operations(int index, int other) const {
  const CheckedProgram& ours = *ranks_[index].program;
  const CheckedProgram& theirs = *ranks_[other].program;
  if (&ours == &theirs) return {};
  const CheckedOperation& own = operation_of(index);
  const CheckedOperation& met = operation_of(other);
  const auto differs = difference(met.operation, own.operation);
  if (!differs) return {};
  const auto& our_queue = ours.operations_on.at(own.operation.group);
  std::string hint;
  for (std::size_t k = own.on_group + 1; k < our_queue.size(); ++k) {
    if (difference(met.operation, ours.operations[our_queue[k]].operation)) continue;
    hint =
        fmt::format("; one of them has changed places with {}", name_operation(*this, index, our_queue[k]));
    break;
  }
  return fail(Errc::mismatch, "{} meets {}; they differ in {}{}",
              name_operation(*this, other, rank(other).met), name_operation(*this, index, rank(index).met),
              *differs, hint);
}

void ProgramRace::finish(const CheckedGroup& group, const Communicator& communicator, std::size_t place) {
  for (const int member : group.members) {
    RankState& rank = ranks_[member];
    const int launch = rank.program->groups.at(communicator)[place];
    const CheckedLaunch& done = rank.program->launches[launch];
    rank.over[launch] = true;
    rank.heads[done.entry.stream] = done.on_stream + 1;
    if (done.entry.gives) ++rank.free[done.entry.gives->pool];
  }
}

Result<void> ProgramRace::compare(int index, int launch, int other) const {
  const CheckedProgram& ours = *ranks_[index].program;
  const CheckedProgram& theirs = *ranks_[other].program;
  if (&ours == &theirs) return {};
  const CheckedLaunch& own = ours.launches[launch];
  const auto communicator = communicator_of(own.entry);
  const auto& our_queue = ours.groups.at(communicator);
  const auto& their_queue = theirs.groups.at(communicator);
  const std::size_t place = own.on_group;
  const auto& met = theirs.launches[their_queue[place]].entry;
  const auto differs = difference(met, own.entry);
  if (!differs) return {};
  std::string hint;
  for (std::size_t k = place + 1; k < std::min(our_queue.size(), their_queue.size()); ++k) {
    const auto& our_later = ours.launches[our_queue[k]].entry;
    const auto& their_later = theirs.launches[their_queue[k]].entry;
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
    for (const int rank : ranks_.indices()) {
      moved = TRY(advance_trainer(rank)) || moved;
      for (const int stream : ranks_[rank].heads.indices()) {
        moved = TRY(advance_stream(rank, stream)) || moved;
      }
    }
  }
  return {};
}

std::string name_operation(const ProgramRace& race, int rank, int operation) {
  const auto& one = race.rank(rank).program->operations[operation];
  return fmt::format("{}'s operation {}, {} of round {}", race.job().ranks[rank].name, operation,
                     describe(one.operation), one.round);
}

std::string name_launch(const ProgramRace& race, int rank, int launch) {
  const auto& entry = race.rank(rank).program->launches[launch].entry;
  return fmt::format("{}'s entry {}, {} on {}", race.job().ranks[rank].name, launch, describe(entry),
                     describe(communicator_of(entry)));
}

}  // namespace troupe::core
