#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/program/program_race.hpp"

namespace troupe::core {
namespace {

/// A trainer (launch -1) or a launch that waits.
struct Waiting {
  int rank = 0;
  int launch = -1;

  friend bool operator==(const Waiting&, const Waiting&) = default;
};

/// What somebody waits for, in words, and who that is; nobody when it never comes.
struct Reason {
  std::string words;
  std::optional<Waiting> next;
};

class Detective {
 public:
  explicit Detective(const ProgramRace& race) : race_(race) {}

  Error explain() const {
    std::vector<Waiting> path{first()};
    std::vector<std::string> words;
    while (true) {
      const Reason reason = why(path.back());
      words.push_back(fmt::format("{} {}", name(path.back()), reason.words));
      if (!reason.next) {
        return {Errc::aborted, fmt::format("the step comes to a standstill: {}", fmt::join(words, "; "))};
      }
      const auto seen = std::find(path.begin(), path.end(), *reason.next);
      if (seen != path.end()) {
        words.erase(words.begin(), words.begin() + (seen - path.begin()));
        return {Errc::aborted, fmt::format("a circle of {} waits: {}", words.size(), fmt::join(words, "; "))};
      }
      path.push_back(*reason.next);
    }
  }

 private:
  const CheckedLaunch& launch_of(const Waiting& w) const {
    return race_.rank(w.rank).program->launches[w.launch];
  }

  std::string name(const Waiting& w) const {
    if (w.launch >= 0) return name_launch(race_, w.rank, w.launch);
    const auto& rank = race_.rank(w.rank);
    const auto& program = *rank.program->program;
    const auto clock = program.clock();
    return fmt::format("{}'s trainer, {} '{}' of round {},", race_.job().ranks[w.rank].name,
                       rank.has_begun ? "in" : "before", describe(clock.point(rank.at)),
                       clock.round_of(rank.at));
  }

  /// A trainer that waits, or else a launch.
  Waiting first() const {
    for (const int r : race_.job().ranks.indices()) {
      if (race_.rank(r).at < race_.rank(r).program->needed_at.end_index()) return {r, -1};
    }
    for (const int r : race_.job().ranks.indices()) {
      const auto& over = race_.rank(r).over;
      const auto found = std::find(over.begin(), over.end(), false);
      if (found != over.end()) return {r, static_cast<int>(found - over.begin())};
    }
    return {};
  }

  Reason why(const Waiting& w) const {
    if (w.launch < 0) return why_trainer(w);
    return race_.rank(w.rank).launched[w.launch] ? why_running(w) : why_queued(w);
  }

  Reason why_trainer(const Waiting& w) const {
    if (race_.rank(w.rank).has_begun) return why_meeting(w);
    const auto launch = race_.trainer_waits_for(w.rank);
    if (!launch) return {"waits for a slot of a pool without slots", std::nullopt};
    return {fmt::format("waits for entry {}", *launch), Waiting{w.rank, *launch}};
  }

  /// Why an operation of the trainer's own stands still: the first member that is not there.
  Reason why_meeting(const Waiting& w) const {
    const CheckedOperation& own = race_.operation_of(w.rank);
    const auto kind = own.operation.group;
    const auto number = race_.rank(w.rank).met;
    for (const int member : race_.group_of(w.rank, kind)->members) {
      const auto& name = race_.job().ranks[member].name;
      const auto& rank = race_.rank(member);
      const auto queue = rank.program->operations_on.find(kind);
      if (queue == rank.program->operations_on.end() || queue->second.size() <= own.on_group) {
        return {
            fmt::format("waits in operation {}, {}, for {}, whose trainer has {} on {}", number,
                        describe(own.operation), name,
                        queue == rank.program->operations_on.end() ? 0 : queue->second.size(), name_of(kind)),
            std::nullopt};
      }
      const int theirs = queue->second[own.on_group];
      if (rank.met == theirs && rank.has_come) continue;
      return {fmt::format("waits in operation {}, {}, for {}", number, describe(own.operation), name),
              Waiting{member, -1}};
    }
    return {"waits for nobody", std::nullopt};
  }

  Reason why_queued(const Waiting& w) const {
    const auto& rank = race_.rank(w.rank);
    const CheckedLaunch& launch = launch_of(w);
    const int stream = launch.entry.stream;
    const int head = rank.program->streams[stream][rank.heads[stream]];
    if (head != w.launch) return {fmt::format("is queued behind entry {}", head), Waiting{w.rank, head}};
    if (rank.at <= launch.ready) {
      return {fmt::format("may start after '{}'", describe(launch.entry.ready)), Waiting{w.rank, -1}};
    }
    if (launch.input >= 0 && !rank.over[launch.input]) {
      return {fmt::format("reads what entry {} brings", launch.input), Waiting{w.rank, launch.input}};
    }
    return {fmt::format("waits for a slot of the pool of {}", name_of(launch.entry.takes->pool)),
            Waiting{w.rank, -1}};
  }

  /// For the first member which is not there.
  Reason why_running(const Waiting& w) const {
    const CheckedLaunch& launch = launch_of(w);
    const auto communicator = communicator_of(launch.entry);
    for (const int member : race_.group_of(w.rank, launch.entry.group)->members) {
      const auto& program = *race_.rank(member).program;
      const auto queue = program.groups.find(communicator);
      if (queue == program.groups.end() || queue->second.size() <= launch.on_group) {
        return {fmt::format("waits for {}, whose program has no launch {} on {}",
                            race_.job().ranks[member].name, launch.on_group, describe(communicator)),
                std::nullopt};
      }
      const int theirs = queue->second[launch.on_group];
      if (race_.rank(member).launched[theirs]) continue;
      return {fmt::format("waits for {}", race_.job().ranks[member].name), Waiting{member, theirs}};
    }
    return {"waits for nobody", std::nullopt};
  }

  const ProgramRace& race_;
};

}  // namespace

Error explain_standstill(const ProgramRace& race) {
  return Detective(race).explain();
}

}  // namespace troupe::core
