#include "actors/simulation/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "actors/simulation/simulation.hpp"
#include "actors/world/exit_status.hpp"
#include "actors/world/random.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/list.hpp"

namespace troupe::actors {

namespace {

using Kind = JobFault::Kind;

constexpr std::chrono::milliseconds kLongestStart{200};

std::string_view name_of_kind(Kind kind) {
  static constexpr auto kNames = core::enum_names<Kind>("kill", "hang", "slow", "join", "power");
  return kNames[kind];
}

double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

core::Result<void> check(const SimulatedJobOptions& options) {
  if (options.ranks < 1 || options.fewest_ranks < 0 || options.fewest_ranks > options.ranks) {
    return core::fail(
        core::Errc::invalid_argument,
        "a simulated job has {} ranks, and at least {} when some are lost; expected one rank or more, "
        "and a least number of at most as many",
        options.ranks, options.fewest_ranks);
  }
  const auto bad = std::ranges::find_if(
      options.faults, [](const JobFault& fault) { return fault.rank.value < 0 || fault.at.count() < 0; });
  if (bad == options.faults.end()) return {};
  return core::fail(core::Errc::invalid_argument, "{}: ranks and moments count from 0", to_string(*bad));
}

class JobUnderFaults {
 public:
  using Train = std::function<core::Result<void>(RankWorld& world)>;

  JobUnderFaults(const SimulatedJobOptions& options, const Train& train)
      : options_(options),
        train_(train),
        loop_(options.seed),
        random_(options.seed, "job", "faults"),
        disk_({.seed = options.seed, .name = "checkpoints"}) {}

  SimulatedJobReport run() {
    for (const auto& fault : all_faults())
      loop_.schedule(fault.at, "fault", [this, fault] { strike(fault); });
    for (int rank = 0; rank < options_.ranks; ++rank) processes_.push_back(start_process());
    while (!is_over_) {
      begin_epoch();
      end_epoch(epochs_.back()->run([this](SimulatedRank& rank) {
        rank.compute(processes_[rank.rank()].starts_for);
        return rank.is_dead() ? core::fail(core::Errc::aborted, "it was killed") : train_(rank);
      }));
    }
    // The memory that they keep belongs to devices, which go first.
    for (auto& process : all_processes_) process->kept.reset();
    report_.epochs = static_cast<int>(epochs_.size());
    report_.virtual_time = loop_.now();
    report_.trace_hash = loop_.trace_hash();
    return std::move(report_);
  }

 private:
  struct Process {
    SimulatedProcess* process = nullptr;
    std::chrono::nanoseconds starts_for{};  ///< until its trainer runs
    bool is_lost = false;
  };

  void say(const std::string& what) {
    report_.log.push_back(fmt::format("{:.3f} s: {}", seconds_of(loop_.now()), what));
  }

  std::vector<JobFault> all_faults() {
    auto faults = options_.faults;
    for (int i = 0; i < options_.drawn_faults; ++i) {
      constexpr Kind kKinds[] = {Kind::kill, Kind::kill, Kind::kill, Kind::hang,
                                 Kind::slow, Kind::join, Kind::join, Kind::power};
      const auto kind = kKinds[random_.below(std::size(kKinds))];
      const core::Rank rank{
          static_cast<std::int32_t>(random_.below(static_cast<std::uint32_t>(options_.ranks)))};
      faults.push_back({kind, rank, random_.up_to(options_.drawn_within), kind == Kind::slow ? 8.0 : 1.0});
    }
    return faults;
  }

  Process start_process() {
    all_processes_.push_back(std::make_unique<SimulatedProcess>(loop_, gpu::SimulatedDeviceOptions{}, true));
    return {all_processes_.back().get(), random_.up_to(kLongestStart)};
  }

  int world() const { return static_cast<int>(processes_.size()); }

  void begin_epoch() {
    SimulationOptions epoch;
    epoch.ranks = {world()};
    epoch.epoch = core::Epoch{epochs_.size() + 1};
    epoch.seed = options_.seed + epochs_.size();
    epoch.storage = &disk_;
    epoch.goes_on = options_.stays;
    epoch.others_stand_by = [this] { return stand_by_ > 0; };
    epoch.time_limit = options_.time_limit;
    std::vector<SimulatedProcess*> processes;
    for (const auto& each : processes_) processes.push_back(each.process);
    say(fmt::format("epoch {} begins with {} ranks", epoch.epoch.value, world()));
    was_hit_ = false;
    epochs_.push_back(std::make_unique<Simulation>(std::move(epoch), loop_, processes));
  }

  void strike(JobFault fault) {
    if (is_over_) return;
    auto& epoch = *epochs_.back();
    fault.rank = {fault.rank.value % world()};
    auto& victim = processes_[fault.rank];
    switch (fault.kind) {
      case Kind::kill:
      case Kind::hang:
        // One that has left is not missed.
        if (victim.is_lost || epoch.rank(fault.rank).has_ended()) return;
        victim.is_lost = was_hit_ = true;
        if (fault.kind == Kind::hang) {
          keep_hanging(fault.rank, epochs_.size());
        } else {
          epoch.inject({.kind = SimulatedFault::Kind::kill, .rank = fault.rank});
        }
        break;
      case Kind::slow:
        epoch.inject({.kind = SimulatedFault::Kind::slow, .rank = fault.rank, .factor = fault.factor});
        break;
      case Kind::join:
        if (world() + stand_by_ >= options_.ranks) return;
        ++stand_by_;
        break;
      case Kind::power:
        for (const auto rank : processes_.indices()) {
          processes_[rank].is_lost = was_hit_ = true;
          epoch.inject({.kind = SimulatedFault::Kind::kill, .rank = rank});
        }
        disk_.crash();
        break;
    }
    say(to_string(fault));
    report_.faults.push_back(fault);
  }

  /// In groups that it joins later, too.
  void keep_hanging(core::Rank rank, std::size_t epochs) {
    constexpr std::chrono::milliseconds kInterval{5};
    if (epochs_.size() != epochs || epochs_.back()->rank(rank).has_ended()) return;
    epochs_.back()->inject({.kind = SimulatedFault::Kind::hang, .rank = rank});
    loop_.schedule(kInterval, "hang", [=, this] { keep_hanging(rank, epochs); });
  }

  void end(core::Result<void> how) {
    is_over_ = true;
    report_.end = std::move(how);
  }

  void end_epoch(const SimulationReport& epoch) {
    for (int rank = 0; rank < world(); ++rank) {
      for (const auto& said : epochs_.back()->rank({rank}).logged())
        say(fmt::format("rank {} said: {}", rank, said));
      const auto& result = epoch.results[static_cast<std::size_t>(rank)];
      say(fmt::format("rank {} ends: {}", rank, result ? "well" : result.error().message));
    }
    if (!epoch.violations.empty()) {
      report_.violations = epoch.violations;
      return end(core::fail(core::Errc::internal, "epoch {}: {}", epochs_.size(), epoch.violations.front()));
    }
    bool has_one_left = false;
    bool have_all_left = true;
    for (const auto rank : processes_.indices()) {
      const auto& result = epoch.results[place_of(rank)];
      const bool is_lost = processes_[rank].is_lost;
      has_one_left |= result.has_value();
      have_all_left &= result.has_value();
      if (result || is_lost || exit_code_of(result.error()) == kExitFenced) continue;
      return end(core::fail(result.error().code, "rank {}: {}", rank.value, result.error().message));
    }
    if (have_all_left) return end({});
    const bool some_join = stand_by_ > 0 && !has_one_left;
    if (!was_hit_ && !some_join) {
      const auto failed = std::ranges::find_if(epoch.results, [](const auto& each) { return !each; });
      return end(core::fail(failed->error().code, "rank {}, to whose peers nothing was done: {}",
                            failed - epoch.results.begin(), failed->error().message));
    }
    form_next(has_one_left || !options_.stays);
  }

  /// The ranks of the next epoch.
  void form_next(bool anew) {
    core::List<core::Rank, Process> next;
    const auto stays = [anew](const Process& process) { return !anew && !process.is_lost; };
    const auto staying = std::ranges::count_if(processes_, stays);
    const bool shrinks = options_.fewest_ranks > 0 && !anew && staying >= options_.fewest_ranks;
    for (const auto& process : processes_) {
      if (stays(process)) {
        next.push_back({process.process, {}});
      } else if (!shrinks) {
        next.push_back(start_process());
      }
    }
    // Those that stood by have started already.
    for (; stand_by_ > 0 && static_cast<int>(next.size()) < options_.ranks; --stand_by_) {
      next.push_back(start_process());
      next.back().starts_for = {};
    }
    stand_by_ = 0;
    processes_ = std::move(next);
  }

  const SimulatedJobOptions& options_;
  const Train& train_;
  EventLoop loop_;
  RandomStream random_;
  SimulatedStorage disk_;
  std::vector<std::unique_ptr<SimulatedProcess>> all_processes_;
  std::vector<std::unique_ptr<Simulation>> epochs_;  ///< what is left of the earlier ones may still happen
  core::List<core::Rank, Process> processes_;
  int stand_by_ = 0;
  bool was_hit_ = false;  ///< in this epoch
  bool is_over_ = false;
  SimulatedJobReport report_;
};

}  // namespace

std::string to_string(const JobFault& fault) {
  const auto at = seconds_of(fault.at);
  const auto name = name_of_kind(fault.kind);
  if (fault.kind == Kind::join || fault.kind == Kind::power) return fmt::format("{} at {:.3f} s", name, at);
  if (fault.kind == Kind::slow)
    return fmt::format("{} rank {} by {:g} at {:.3f} s", name, fault.rank.value, fault.factor, at);
  return fmt::format("{} rank {} at {:.3f} s", name, fault.rank.value, at);
}

SimulatedJobReport simulate_job(const SimulatedJobOptions& options,
                                const std::function<core::Result<void>(RankWorld& world)>& train) {
  if (auto good = check(options); !good) return {.end = std::move(good)};
  return JobUnderFaults(options, train).run();
}

void compute_for(RankWorld& world, std::chrono::nanoseconds duration) {
  if (auto* const simulated = dynamic_cast<SimulatedRank*>(&world)) simulated->compute(duration);
}

}  // namespace troupe::actors
