#include "actors/chaos/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "actors/world/random.hpp"
#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

namespace {

constexpr std::string_view kHeading = "troupe chaos 2";

constexpr auto kKindNames =
    core::enum_names<ChaosKind>("kill_rank", "stop_rank", "slow_rank", "kill_node", "stop_node",
                                "kill_launcher", "kill_leader", "cut_link", "cut_one_way", "clock_jump",
                                "slow_disk", "full_disk", "lying_disk", "rotten_disk", "kill_in_commit");
constexpr auto kPhaseNames = core::enum_names<ChaosPhase>("starting", "computing", "deciding", "saving",
                                                          "rebuilding", "restarting", "joining");

struct SetupField {
  std::string_view name;
  int ChaosSetup::*number = nullptr;
  bool ChaosSetup::*flag = nullptr;
  int least = 0;
  int most = 64;
};
constexpr std::array kSetupFields{
    SetupField{"nodes", &ChaosSetup::nodes, nullptr, 1},
    SetupField{"ranks", &ChaosSetup::ranks, nullptr, 1},
    SetupField{"spares", &ChaosSetup::spares},
    SetupField{"fewest_nodes", &ChaosSetup::fewest_nodes},
    SetupField{"fewest_ranks", &ChaosSetup::fewest_ranks},
    SetupField{"node_ranks", nullptr, &ChaosSetup::node_ranks},
    SetupField{"last_call_ms", &ChaosSetup::last_call_ms, nullptr, 0, 1'000'000},
    SetupField{"max_restarts", &ChaosSetup::max_restarts, nullptr, 0, 1'000'000},
    SetupField{"in_place", nullptr, &ChaosSetup::in_place},
    SetupField{"journal", nullptr, &ChaosSetup::journal},
    SetupField{"sharded", nullptr, &ChaosSetup::sharded},
    SetupField{"steps", &ChaosSetup::steps, nullptr, 1, 1'000'000},
    SetupField{"save_every", &ChaosSetup::save_every, nullptr, 1, 1'000'000},
    SetupField{"lanes", &ChaosSetup::lanes, nullptr, 1, 4096}};

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const auto end = std::min(line.find(' '), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

/// "fault KIND target T other O at MICROSECONDS [in PHASE NTH] lasts MICROSECONDS"
std::optional<ChaosFault> parse_fault(const std::vector<std::string_view>& words) {
  if (words.size() < 2) return std::nullopt;
  const auto kind = kKindNames.find(words[1]);
  if (!kind) return std::nullopt;
  ChaosFault fault;
  fault.kind = *kind;
  for (std::size_t at = 2; at < words.size(); at += 2) {
    const auto name = words[at];
    if (at + 1 == words.size()) return std::nullopt;
    if (name == "in") {
      const auto phase = kPhaseNames.find(words[at + 1]);
      if (!phase || at + 2 >= words.size()) return std::nullopt;
      fault.phase = *phase;
      const auto nth = core::parse_number<int>(words[at + 2], {0, 1'000'000});
      if (!nth) return std::nullopt;
      fault.nth = *nth;
      ++at;
      continue;
    }
    const auto number = core::parse_number<std::int64_t>(words[at + 1], {0, 1'000'000'000'000});
    if (!number) return std::nullopt;
    const auto time = std::chrono::microseconds(*number);
    if (name == "target" || name == "other") {
      if (*number > 100'000) return std::nullopt;
      (name == "target" ? fault.target : fault.other) = static_cast<int>(*number);
    } else if (name == "at") {
      fault.at = time;
    } else if (name == "lasts") {
      fault.lasts = time;
    } else {
      return std::nullopt;
    }
  }
  return fault;
}

bool parse_line(const std::vector<std::string_view>& words, ChaosSchedule& schedule) {
  if (words[0] == "fault") {
    const auto fault = parse_fault(words);
    if (fault) schedule.faults.push_back(*fault);
    return fault.has_value();
  }
  if (words.size() != 2) return false;
  if (words[0] == "seed") {
    const auto seed =
        core::parse_number<std::uint64_t>(words[1], {0, std::numeric_limits<std::uint64_t>::max()});
    if (seed) schedule.seed = *seed;
    return seed.has_value();
  }
  for (const SetupField& field : kSetupFields) {
    if (field.name != words[0]) continue;
    const auto value =
        core::parse_number<int>(words[1], {field.least, field.flag != nullptr ? 1 : field.most});
    if (!value) return false;
    if (field.flag != nullptr) schedule.setup.*field.flag = *value == 1;
    if (field.number != nullptr) schedule.setup.*field.number = *value;
    return true;
  }
  return false;
}

class Draw {
 public:
  Draw(std::uint64_t seed, const ChaosBounds& bounds) : random_(seed, "chaos", "schedule"), bounds_(bounds) {
    schedule_.seed = seed;
  }

  ChaosSchedule schedule() {
    job();
    if (one_in(60)) return split();
    if (one_in(20) && bounds_.nodes > 2) return returns();
    const auto kinds = kinds_switched_on();
    const int count = 1 + below(bounds_.faults);
    auto& faults = schedule_.faults;
    for (int i = 0; i < count; ++i) {
      faults.push_back(drawn_fault(kinds[static_cast<std::size_t>(below(static_cast<int>(kinds.size())))]));
      // Several at once.
      if (one_in(4)) faults.back().at = faults.front().at;
      const bool is_of_bytes =
          faults.back().kind == ChaosKind::lying_disk || faults.back().kind == ChaosKind::rotten_disk;
      // Somebody reads what was saved.
      if (is_of_bytes && one_in(2)) faults.push_back(later_kill(faults.back()));
    }
    const auto is_of_joining = [](const ChaosFault& fault) { return fault.phase == ChaosPhase::joining; };
    if (schedule_.setup.in_place && std::ranges::any_of(faults, is_of_joining) && one_in(2)) let_some_join();
    // Two of them may pass all that is waited for before a process has to have ended.
    const auto is_jump = [](const ChaosFault& fault) { return fault.kind == ChaosKind::clock_jump; };
    const auto first = std::ranges::find_if(faults, is_jump);
    if (first != faults.end())
      faults.erase(std::remove_if(std::next(first), faults.end(), is_jump), faults.end());
    return std::move(schedule_);
  }

 private:
  int below(int limit) { return static_cast<int>(random_.below(static_cast<std::uint32_t>(limit))); }
  bool one_in(int count) { return below(count) == 0; }

  void job() {
    auto& job = schedule_.setup;
    job.nodes = 1 + below(bounds_.nodes);
    job.ranks = 1 + below(bounds_.ranks);
    job.spares = one_in(2) ? below(bounds_.spares + 1) : 0;
    job.in_place = !one_in(6);
    const int ranks = job.nodes * job.ranks;
    if (job.in_place && job.nodes > 1 && one_in(2)) job.fewest_nodes = 1 + below(job.nodes - 1);
    if (job.in_place && one_in(2)) job.fewest_ranks = 1 + below(job.ranks);
    if (!job.in_place) job.fewest_ranks = job.fewest_nodes = job.spares = 0;
    job.node_ranks = one_in(2);
    if (one_in(2)) job.last_call_ms = 1 + below(5'000);
    job.journal = job.nodes > 1 && one_in(2);
    job.sharded = one_in(2);
    job.steps = 8 + below(std::max(1, bounds_.steps - 8));
    // Long enough for all that has been lost to come back.
    if (one_in(40)) job.steps = 40 * bounds_.steps;
    job.save_every = 1 + below(5);
    job.lanes = ranks + below(5);
    // What ends is started again, however often that must be; but in a few jobs, which may end of it.
    job.max_restarts = 200;
    constexpr std::uint64_t kFewOfSoMany = 16;
    if (schedule_.seed % kFewOfSoMany == 5)
      job.max_restarts = static_cast<int>(schedule_.seed / kFewOfSoMany % 4);
  }

  /// All ranks of an epoch are on a node that is cut off, and go on for as long as their launcher looks for
  /// that of node 0, while others begin the next epoch.
  ChaosSchedule split() {
    auto& job = schedule_.setup;
    job = ChaosSetup{.nodes = 2, .ranks = 1, .fewest_nodes = 1, .fewest_ranks = 1, .max_restarts = 200};
    job.journal = true;
    job.steps = 300;
    job.save_every = 1 + below(5);
    job.lanes = 2 + below(3);
    auto at = std::chrono::microseconds(200'000 + below(500'000));
    schedule_.faults.push_back({.kind = ChaosKind::kill_rank, .target = 0, .at = at});
    at += std::chrono::milliseconds(10 + below(500));
    schedule_.faults.push_back({.kind = one_in(2) ? ChaosKind::cut_link : ChaosKind::cut_one_way,
                                .target = 1,
                                .other = 0,
                                .at = at,
                                .lasts = std::chrono::milliseconds(5'000 + below(9'000))});
    return std::move(schedule_);
  }

  /// The launcher of node 0 is gone, and so are some of the others: all come back, in any order.
  ChaosSchedule returns() {
    auto& job = schedule_.setup;
    job.nodes = 3 + below(bounds_.nodes - 2);
    job.fewest_nodes = one_in(2) ? 0 : 1 + below(job.nodes - 1);
    job.fewest_ranks = one_in(2) ? 0 : 1 + below(job.ranks);
    job.lanes = job.nodes * job.ranks;
    job.in_place = job.journal = true;
    job.max_restarts = 200;
    job.last_call_ms = 1 + below(1'000);
    job.steps = 300;
    const auto at = std::chrono::microseconds(below(2'000'000));
    const auto outage = [this] {
      return std::chrono::milliseconds(one_in(2) ? 1 + below(2'000) : 1 + below(20'000));
    };
    constexpr std::array kWays{ChaosKind::kill_launcher, ChaosKind::kill_node, ChaosKind::cut_link};
    for (int host = 1; host < job.nodes; ++host) {
      for (int times = below(3); times > 0; --times)
        schedule_.faults.push_back({.kind = kWays[static_cast<std::size_t>(below(3))],
                                    .target = host,
                                    .at = at + std::chrono::milliseconds(below(8'000)),
                                    .lasts = outage()});
    }
    schedule_.faults.push_back({.kind = one_in(2) ? ChaosKind::kill_leader : ChaosKind::kill_node,
                                .at = at + std::chrono::milliseconds(below(8'000)),
                                .lasts = outage()});
    return std::move(schedule_);
  }

  bool is_possible(ChaosKind kind) const {
    const auto& job = schedule_.setup;
    switch (kind) {
      case ChaosKind::kill_leader:
        return job.journal;
      case ChaosKind::kill_node:
      case ChaosKind::kill_launcher:
      case ChaosKind::cut_link:
      case ChaosKind::cut_one_way:
        return job.nodes > 1;
      default:
        return true;
    }
  }

  std::vector<ChaosKind> kinds_switched_on() {
    std::vector<ChaosKind> possible, on;
    for (std::size_t i = 0; i < kChaosKinds; ++i) {
      if (is_possible(static_cast<ChaosKind>(i))) possible.push_back(static_cast<ChaosKind>(i));
    }
    for (const auto kind : possible) {
      if (one_in(3)) on.push_back(kind);
    }
    if (on.empty())
      on.push_back(possible[static_cast<std::size_t>(below(static_cast<int>(possible.size())))]);
    return on;
  }

  ChaosFault drawn_fault(ChaosKind kind) {
    const auto& job = schedule_.setup;
    ChaosFault fault;
    fault.kind = kind;
    const bool is_of_host = kind >= ChaosKind::kill_node && kind <= ChaosKind::clock_jump;
    fault.target = is_of_host ? below(job.nodes) : below(job.nodes * (job.ranks + job.spares));
    if (job.nodes > 1) fault.other = (fault.target + 1 + below(job.nodes - 1)) % job.nodes;
    // Node 0 is where the job is decided: it comes back only as its launcher does.
    const bool must_stay = kind == ChaosKind::kill_launcher || (kind == ChaosKind::kill_node && !job.journal);
    if (must_stay && fault.target == 0) fault.target = 1 + below(job.nodes - 1);
    if (one_in(2)) {
      // Phases that last for a short time only, or are rare, twice as often.
      constexpr std::array kOften{ChaosPhase::deciding, ChaosPhase::rebuilding, ChaosPhase::restarting,
                                  ChaosPhase::joining};
      fault.phase = one_in(2) ? static_cast<ChaosPhase>(below(static_cast<int>(kChaosPhases)))
                              : kOften[static_cast<std::size_t>(below(static_cast<int>(kOften.size())))];
      fault.nth = one_in(2) ? 0 : below(12);
      fault.at = std::chrono::microseconds(one_in(2) ? below(2'000) : below(60'000));
    } else {
      fault.at = std::chrono::microseconds(below(2'000'000));
    }
    // Both shorter and longer than what is believed to be a loss.
    fault.lasts = std::chrono::milliseconds(one_in(2) ? 1 + below(900) : 1'000 + below(25'000));
    if (kind == ChaosKind::lying_disk) fault.lasts = std::chrono::milliseconds(1 + below(900));
    if (kind == ChaosKind::clock_jump) fault.lasts = std::chrono::milliseconds(1 + below(30'000));
    return fault;
  }

  /// Others join where the job has gone on without some.
  void let_some_join() {
    auto& job = schedule_.setup;
    job.fewest_ranks = 1;
    job.steps = std::max(job.steps, 60);
    schedule_.faults.push_back({.kind = ChaosKind::kill_rank,
                                .target = below(job.nodes * job.ranks),
                                .at = std::chrono::microseconds(below(2'000'000))});
  }

  ChaosFault later_kill(const ChaosFault& before) {
    auto kill = before;
    kill.kind = ChaosKind::kill_rank;
    kill.target = below(schedule_.setup.nodes * schedule_.setup.ranks);
    kill.at += before.lasts % std::chrono::seconds(1) + std::chrono::milliseconds(below(300));
    return kill;
  }

  RandomStream random_;
  const ChaosBounds& bounds_;
  ChaosSchedule schedule_;
};

}  // namespace

std::string_view name_of(ChaosKind kind) noexcept {
  return kKindNames[kind];
}

std::string_view name_of(ChaosPhase phase) noexcept {
  return kPhaseNames[phase];
}

std::string to_text(const ChaosSchedule& schedule) {
  auto text = fmt::format("{}\nseed {}\n", kHeading, schedule.seed);
  for (const SetupField& field : kSetupFields) {
    const int value =
        field.flag != nullptr ? static_cast<int>(schedule.setup.*field.flag) : schedule.setup.*field.number;
    text += fmt::format("{} {}\n", field.name, value);
  }
  for (const auto& fault : schedule.faults) {
    text += fmt::format("fault {} target {} other {} at {}", name_of(fault.kind), fault.target, fault.other,
                        fault.at.count());
    if (fault.phase) text += fmt::format(" in {} {}", name_of(*fault.phase), fault.nth);
    text += fmt::format(" lasts {}\n", fault.lasts.count());
  }
  return text;
}

core::Result<ChaosSchedule> parse_schedule(std::string_view text) {
  ChaosSchedule schedule;
  bool is_first = true;
  for (int number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto words = words_of(line);
    if (words.empty() || words[0].front() == '#') continue;
    const bool is_right = is_first ? line == kHeading : parse_line(words, schedule);
    if (!is_right) {
      return core::fail(core::Errc::invalid_argument, "line {} of the schedule is not {}: {}", number,
                        is_first ? fmt::format("\"{}\", with which one begins", kHeading)
                                 : "a part of one, as --save writes them",
                        core::quoted_excerpt(line));
    }
    is_first = false;
  }
  const auto& job = schedule.setup;
  if (is_first)
    return core::fail(core::Errc::invalid_argument, "the schedule is empty; it begins with \"{}\"", kHeading);
  if (job.fewest_nodes > job.nodes || job.fewest_ranks > job.ranks || job.lanes < job.nodes * job.ranks)
    return core::fail(
        core::Errc::invalid_argument,
        "the schedule's job has {} nodes of {} ranks and {} lanes, and goes on with at least {} "
        "nodes of {} ranks: it needs at least as many lanes as ranks, and cannot go on with more nodes "
        "or ranks than it has",
        job.nodes, job.ranks, job.lanes, job.fewest_nodes, job.fewest_ranks);
  return schedule;
}

ChaosSchedule drawn_schedule(std::uint64_t seed, const ChaosBounds& bounds) {
  return Draw(seed, bounds).schedule();
}

}  // namespace troupe::actors
