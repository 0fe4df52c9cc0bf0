#include "actors/chaos/chaos.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>
#include <optional>
#include <utility>

#include "actors/chaos/launchers.hpp"
#include "actors/chaos/rank.hpp"
#include "actors/chaos/world.hpp"
#include "actors/planes/checkpoint/directory.hpp"

namespace troupe::actors {

namespace {

/// After the last fault has ended a job has so long to end.
constexpr std::chrono::seconds kLiveness{600};

class ChaosRun {
 public:
  ChaosRun(const ChaosSchedule& schedule, PlantedBug planted, bool tells)
      : world_(schedule, planted, tells), job_(world_) {
    const auto& faults = schedule.faults;
    for (const auto& fault : faults) {
      const bool disturbs_time = fault.kind == ChaosKind::clock_jump || fault.kind == ChaosKind::stop_node;
      job_.is_lenient = job_.is_lenient || disturbs_time;
    }
  }

  ChaosReport run() {
    for (const auto& fault : world_.schedule.faults) {
      if (fault.phase) {
        expected_.push_back(&fault);
      } else {
        world_.loop.schedule(fault.at, "fault", [this, &fault] { inject(fault); });
      }
    }
    job_.start();
    const auto is_over = [this] {
      note_phase();
      return job_.is_over();
    };
    // No fault begins later than this, and none lasts longer.
    constexpr std::chrono::seconds kUntilCalm{3600};
    constexpr std::uint64_t kMostEvents = 3'000'000;
    auto stop = EventLoop::Stop::condition;
    do {
      stop = world_.loop.run_until(is_over, {.time = last_fault_ + kLiveness, .events = kMostEvents});
    } while (stop == EventLoop::Stop::time_limit && world_.loop.now() < last_fault_ + kLiveness &&
             world_.loop.now() < kUntilCalm);
    check_end(stop);
    return report();
  }

 private:
  void check_end(EventLoop::Stop stop) {
    auto& monitor = world_.monitor;
    if (!job_.is_over()) {
      monitor.violate("L2",
                      fmt::format("the job has not ended {} s after the last fault: {}{}", kLiveness.count(),
                                  state(), stop == EventLoop::Stop::event_limit ? ", too many events" : ""));
      return;
    }
    const auto& agent = job_.leader->agent();
    restarts_ = agent ? agent->machine().restarts() : 0;
    if (restarts_ > world_.setup.max_restarts)
      monitor.violate("R3", fmt::format("{} restarts, of {}", restarts_, world_.setup.max_restarts));
    if (*job_.exit_code != 0 && !is_used_up())
      monitor.violate("L2", fmt::format("the job ends with exit code {}: {}", *job_.exit_code, job_.verdict));
    check_what_calm_brings();
    // What is cut off, stopped or late has time to notice.
    const auto end = world_.loop.now() + std::chrono::seconds(60);
    world_.loop.run_until([] { return false; }, {.time = end, .events = 1'000'000});
    const auto alive =
        std::ranges::count_if(world_.processes, [](const auto& each) { return each->is_alive(); });
    if (alive > 0) monitor.violate("R1", fmt::format("{} processes are left of a job that has ended", alive));
  }

  /// There may have been too few restarts for all that failed.
  bool is_used_up() const { return restarts_ == world_.setup.max_restarts; }

  /// Where a job goes on for long enough after all faults, nothing of them is left.
  void check_what_calm_brings() {
    constexpr std::chrono::seconds kCalm{15};
    if (world_.loop.now() < last_fault_ + kCalm || *job_.exit_code != 0) return;
    const auto& setup = world_.setup;
    const auto ranks = world_.monitor.newest_view().seats.size();
    if (setup.in_place && !is_used_up() && static_cast<int>(ranks) != setup.nodes * setup.ranks)
      world_.monitor.violate("L7", fmt::format("the job ends with {} of {} ranks, though all could take part",
                                               ranks, setup.nodes * setup.ranks));
    const auto listed = list_checkpoints(world_.disk);
    const auto newest = listed && !listed->empty() ? listed->front().step.value : 0;
    if (newest + 2 * setup.save_every < setup.steps)
      world_.monitor.violate("L6",
                             fmt::format("the newest checkpoint has {} of {} steps", newest, setup.steps));
  }

  std::string state() const {
    if (!job_.leader || !job_.leader->agent()) return "its launchers have not met";
    const auto& agent = job_.leader->agent()->machine();
    return fmt::format("generation {}, {}{}", agent.generation(), agent.state(),
                       agent.is_rebuilding() ? ", rebuilding" : "");
  }

  ChaosReport report() {
    ChaosReport report;
    report.violations = world_.monitor.violations();
    report.coverage = coverage_;
    report.trace_hash = world_.loop.trace_hash();
    report.events = world_.loop.events();
    report.virtual_time = world_.loop.now();
    report.generations = job_.generations;
    report.restarts = restarts_;
    report.exit_code = job_.exit_code.value_or(-1);
    report.verdict = job_.verdict;
    report.log = std::move(world_.log);
    return report;
  }

  void note_phase() {
    const auto phase = job_.phase();
    if (phase == phase_) return;
    phase_ = phase;
    const int nth = entered_[static_cast<std::size_t>(phase)]++;
    for (const auto* fault : expected_) {
      if (*fault->phase == phase && fault->nth == nth)
        world_.loop.schedule(fault->at, "fault", [this, fault] { inject(*fault); });
    }
  }

  /// Something is done to a process; what it is told to do later is done to it whatever comes then.
  void inject(const ChaosFault& fault) {
    if (job_.is_over()) return;
    const auto phase = job_.phase();
    if (!carry_out(fault)) return;
    coverage_.met[static_cast<std::size_t>(fault.kind)][static_cast<std::size_t>(phase)] += 1;
    last_fault_ = std::max(last_fault_, world_.loop.now() + fault.lasts);
    world_.log.push_back(
        world_.line(fmt::format("fault {} of {}, in {}", name_of(fault.kind), fault.target, name_of(phase))));
  }

  int host_of(int number) const { return number % world_.setup.nodes; }

  void heal_after(const ChaosFault& fault, std::function<void()> heal) {
    world_.loop.schedule(fault.lasts, "fault has ended", [this, kind = fault.kind, heal = std::move(heal)] {
      world_.say("{} has ended", name_of(kind));
      heal();
    });
  }

  std::shared_ptr<ChaosRank> target_of(const ChaosFault& fault) const {
    const auto& setup = world_.setup;
    const int slots = setup.nodes * (setup.ranks + setup.spares);
    auto found = job_.process_in(fault.target % slots);
    return found && found->is_alive() ? found : nullptr;
  }

  bool carry_out(const ChaosFault& fault) {
    switch (fault.kind) {
      case ChaosKind::kill_rank:
      case ChaosKind::stop_rank:
      case ChaosKind::slow_rank:
        return on_rank(fault);
      case ChaosKind::kill_node:
      case ChaosKind::kill_launcher:
      case ChaosKind::kill_leader:
        return kill_launcher(fault);
      case ChaosKind::stop_node:
        return stop_node(host_of(fault.target), fault);
      case ChaosKind::cut_link:
      case ChaosKind::cut_one_way:
        return cut(host_of(fault.target), host_of(fault.other), fault);
      case ChaosKind::clock_jump: {
        auto* const clock = job_.clock_of(host_of(fault.target));
        if (clock != nullptr) clock->jump(fault.lasts);
        return clock != nullptr;
      }
      default:
        return on_disk(fault);
    }
  }

  bool on_rank(const ChaosFault& fault) {
    const auto rank = target_of(fault);
    if (!rank) return false;
    if (fault.kind == ChaosKind::slow_rank) {
      rank->set_slow(true);
      heal_after(fault, [rank] { rank->set_slow(false); });
      return true;
    }
    rank->was_hit = true;
    rank->signal(fault.kind == ChaosKind::kill_rank ? SIGKILL : SIGSTOP);
    if (fault.kind == ChaosKind::stop_rank) heal_after(fault, [rank] { rank->signal(SIGCONT); });
    return true;
  }

  bool kill_launcher(const ChaosFault& fault) {
    const bool with_host = fault.kind == ChaosKind::kill_node;
    const int host = fault.kind == ChaosKind::kill_leader ? 0 : host_of(fault.target);
    const auto place = static_cast<std::size_t>(host);
    if (world_.is_down[place] || world_.is_still[place] || job_.clock_of(host) == nullptr) return false;
    if (host == 0 && !world_.setup.journal) return false;
    hit_host(host);
    job_.kill_launcher(host, with_host);
    if (with_host) {
      world_.is_down[place] = true;
      block_all(host, true);
      world_.links.forget(host);
    }
    heal_after(fault, [this, host, place, with_host] {
      if (with_host) {
        world_.is_down[place] = false;
        world_.links.forget(host);
        block_all(host, false);
        job_.reset_connections(host);
      }
      job_.start_launcher(host);
    });
    return true;
  }

  void block_all(int host, bool blocks) {
    for (int other = 0; other < world_.setup.nodes; ++other) {
      if (other == host) continue;
      blocks ? world_.links.block(host, other) : world_.links.unblock(host, other);
      blocks ? world_.links.block(other, host) : world_.links.unblock(other, host);
    }
  }

  bool stop_node(int host, const ChaosFault& fault) {
    const auto place = static_cast<std::size_t>(host);
    if (world_.is_down[place] || world_.is_still[place]) return false;
    world_.is_still[place] = true;
    hit_host(host);
    block_all(host, true);
    world_.links.block(host, host);
    auto* const clock = job_.clock_of(host);
    if (clock != nullptr) clock->stop();
    std::vector<std::shared_ptr<ChaosRank>> held;
    for (const auto& each : world_.processes) {
      if (each->host() == host && each->is_alive()) held.push_back(each);
    }
    for (const auto& each : held) each->hold(true);
    heal_after(fault, [this, host, place, held] {
      world_.is_still[place] = false;
      world_.links.unblock(host, host);
      block_all(host, false);
      if (auto* const still = job_.clock_of(host)) still->go_on();
      for (const auto& each : held) each->hold(false);
    });
    return true;
  }

  void hit_host(int host) { world_.was_hit[static_cast<std::size_t>(host)] = true; }

  bool cut(int one, int other, const ChaosFault& fault) {
    if (one == other) return false;
    hit_host(one);
    hit_host(other);
    const bool both = fault.kind == ChaosKind::cut_link;
    world_.links.block(one, other);
    if (both) world_.links.block(other, one);
    heal_after(fault, [this, one, other, both] {
      world_.links.unblock(one, other);
      if (both) world_.links.unblock(other, one);
    });
    return true;
  }

  bool on_disk(const ChaosFault& fault) {
    auto& disk = world_.disk;
    if (fault.kind == ChaosKind::kill_in_commit) {
      world_.dies_in_commit = fault.target;
      heal_after(fault, [this] { world_.dies_in_commit.reset(); });
    } else if (fault.kind == ChaosKind::slow_disk) {
      disk.is_slow = true;
      heal_after(fault, [&disk] { disk.is_slow = false; });
    } else if (fault.kind == ChaosKind::rotten_disk) {
      return rot(fault);
    } else if (fault.kind == ChaosKind::full_disk) {
      disk.set_full(true);
      heal_after(fault, [&disk] { disk.set_full(false); });
    } else {
      disk.disk().set_lying(true);
      heal_after(fault, [this, &disk] {
        world_.monitor.store_was_betrayed();
        disk.disk().crash();
        disk.disk().set_lying(false);
      });
    }
    return true;
  }

  bool rot(const ChaosFault& fault) {
    const auto listed = list_checkpoints(world_.disk);
    if (!listed || listed->empty()) return false;
    const auto files = world_.disk.list(listed->front().name);
    if (!files || files->empty()) return false;
    const auto& file = (*files)[static_cast<std::size_t>(fault.target) % files->size()];
    world_.monitor.store_was_betrayed();
    return world_.disk.disk().rot(path_in(listed->front().name, file)).has_value();
  }

  ChaosWorld world_;
  ChaosJob job_;
  std::vector<const ChaosFault*> expected_;
  std::optional<ChaosPhase> phase_;
  std::array<int, kChaosPhases> entered_{};
  std::chrono::nanoseconds last_fault_{};
  ChaosCoverage coverage_;
  int restarts_ = 0;
};

/// The invariants that are violated, by name.
std::string first_violated(const ChaosReport& report) {
  if (report.violations.empty()) return "";
  return report.violations.front().substr(0, report.violations.front().find(':'));
}

}  // namespace

ChaosReport run_chaos(const ChaosSchedule& schedule, PlantedBug planted, bool tells) {
  return ChaosRun(schedule, planted, tells).run();
}

ChaosSchedule shrunk(const ChaosSchedule& schedule, PlantedBug planted) {
  const auto wanted = first_violated(run_chaos(schedule, planted));
  if (wanted.empty()) return schedule;
  auto best = schedule;
  const auto accept = [&](const ChaosSchedule& smaller) {
    if (first_violated(run_chaos(smaller, planted)) != wanted) return false;
    best = smaller;
    return true;
  };
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    for (std::size_t i = best.faults.size(); i-- > 0;) {
      auto smaller = best;
      smaller.faults.erase(smaller.faults.begin() + static_cast<std::ptrdiff_t>(i));
      is_smaller |= accept(smaller);
    }
    const auto less = [&](auto change) {
      auto smaller = best;
      change(smaller.setup);
      if (!(smaller == best) && parse_schedule(to_text(smaller))) is_smaller |= accept(smaller);
    };
    less([](ChaosSetup& job) { job.spares = 0; });
    less([](ChaosSetup& job) { job.nodes = std::max(1, job.nodes - 1); });
    less([](ChaosSetup& job) { job.ranks = std::max(1, job.ranks - 1); });
    less([](ChaosSetup& job) { job.steps = std::max(1, job.steps / 2); });
    less([](ChaosSetup& job) { job.lanes = std::max(1, job.lanes - 1); });
    less([](ChaosSetup& job) { job.sharded = job.journal = false; });
  }
  return best;
}

}  // namespace troupe::actors
