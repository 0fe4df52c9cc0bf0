#include "apps/troupe/plan/goodput.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "actors/launch/node_agent.hpp"
#include "actors/world/random.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr double kHour = 3600;

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

Result<void> check(const GoodputArguments& a) {
  if (a.ranks % a.node_ranks != 0)
    return core::fail(Errc::invalid_argument, "{} ranks are not a whole number of nodes with {} each",
                      a.ranks, a.node_ranks);
  if (a.fewest_nodes > a.ranks / a.node_ranks)
    return core::fail(Errc::invalid_argument, "--fewest-nodes is {}, but the job has {} nodes",
                      a.fewest_nodes, a.ranks / a.node_ranks);
  constexpr double kMostFailures = 1e5;
  const double failures = a.days * 24 * a.ranks / a.mtbf_hours;
  if (failures > kMostFailures)
    return core::fail(Errc::invalid_argument,
                      "{:.3g} failures in {:g} days are more than {:g}: give fewer --days or --ranks, or a "
                      "longer --mtbf-per-device",
                      failures, a.days, kMostFailures);
  return {};
}

class Job {
 public:
  Job(const GoodputArguments& arguments, double save_every, std::uint64_t seed)
      : a_(arguments),
        save_every_(save_every),
        end_(a_.days * 24 * kHour),
        random_(seed, "goodput", "failures"),
        machine_(config(arguments)) {}

  GoodputRun run() {
    perform(machine_.start({}));
    double failure = next_failure();
    while (now_ < end_ && machine_.state() != "finished") {
      const double event = events_.empty() ? end_ : std::min(end_, events_.begin()->first);
      if (failure < event) {
        advance(failure);
        fail();
        failure = next_failure();
        continue;
      }
      advance(event);
      if (event >= end_) break;
      auto what = std::move(events_.extract(events_.begin()).mapped());
      what();
    }
    advance(end_);
    auto& lost = run_.lost;
    for (double* each : {&lost.saving, &lost.recovering, &lost.again, &lost.waiting, &lost.fewer})
      *each /= end_;
    return run_;
  }

 private:
  enum class State : std::uint8_t { waiting, recovering, training };

  static actors::NodeAgentConfig config(const GoodputArguments& a) {
    actors::NodeAgentConfig config;
    config.ranks = a.ranks;
    config.nodes = a.ranks / a.node_ranks;
    for (int node = 0; node < config.nodes; ++node) config.shares.push_back({a.node_ranks, 0});
    for (int node = 0; node < a.spare_nodes; ++node) config.shares.push_back({0, a.node_ranks});
    config.fewest_nodes = a.fewest_nodes == 0 ? config.nodes : a.fewest_nodes;
    config.fewest_ranks = config.fewest_nodes * a.node_ranks;
    config.nodes += a.spare_nodes;
    config.in_place = !a.restart;
    config.max_restarts = 1 << 30;
    config.no_progress_limit = 1 << 28;
    config.node_patience = nanoseconds(1e9);
    return config;
  }

  int nodes() const { return a_.ranks / a_.node_ranks + a_.spare_nodes; }

  double next_failure() {
    const double devices = (nodes() - static_cast<int>(absent_.size())) * a_.node_ranks;
    return now_ - std::log(1 - random_.uniform()) * a_.mtbf_hours * kHour / std::max(devices, 1.0);
  }

  void later(double seconds, std::function<void()> what) { events_.emplace(now_ + seconds, std::move(what)); }
  /// What belongs to an epoch is void once there is another one.
  void later_in_epoch(double seconds, std::function<void()> what) {
    later(seconds, [this, epoch = epoch_, what = std::move(what)] {
      if (epoch == epoch_) what();
    });
  }

  void advance(double to) {
    const double time = to - now_;
    now_ = to;
    if (state_ == State::waiting) run_.lost.waiting += time;
    if (state_ == State::recovering) run_.lost.recovering += time;
    if (state_ != State::training) return;
    const double rate = static_cast<double>(machine_.slots().size()) / a_.ranks;
    const double stalls = a_.stall / (save_every_ + a_.stall);
    run_.lost.saving += time * stalls;
    run_.lost.fewer += time * (1 - stalls) * (1 - rate);
    trained_ += time * (1 - stalls);
  }

  /// Trained for so long since a state that can be loaded.
  double unsaved() const {
    const double written = trained_ - a_.write;
    return written < 0 ? trained_ : trained_ - save_every_ * std::floor(written / save_every_);
  }

  void fail() {
    ++run_.failures;
    const int slot = static_cast<int>(random_.below(static_cast<std::uint32_t>(nodes() * a_.node_ranks)));
    const int node = slot / a_.node_ranks;
    if (absent_.contains(node)) return;
    const bool all_stay = !a_.restart && state_ != State::waiting;
    const actors::Standing standing{state_ == State::training, all_stay};
    const auto now = nanoseconds(now_);
    machine_.committed(static_cast<std::int64_t>(++reported_));
    if (random_.happens(a_.node_share)) {
      absent_.insert(node);
      later(a_.repair_hours * kHour, [this, node] {
        absent_.erase(node);
        perform(machine_.node_ready(node, nanoseconds(now_)));
        take_in();
      });
      perform(machine_.node_lost(node, now, standing));
    } else if (const auto rank = machine_.rank_of(slot)) {
      perform(machine_.exited(*rank, {0, SIGKILL}, now, standing));
    } else if (machine_.spares().contains(slot)) {
      standing_by_.erase(slot);
      perform(machine_.spare_exited(slot, {0, SIGKILL}, true));
    }
  }

  void take_in() {
    if (state_ == State::training && machine_.has_newcomers()) perform(machine_.take_in());
  }

  void begin_epoch(double takes, bool is_anew, bool from_memory) {
    ++epoch_;
    ++run_.epochs;
    if (state_ == State::training || is_anew) {
      const double again = from_memory ? 0 : unsaved();
      const double rate = static_cast<double>(machine_.slots().size()) / a_.ranks;
      run_.lost.again += again * rate;
      trained_ -= again;
    }
    state_ = State::recovering;
    later_in_epoch(takes, [this] {
      state_ = State::training;
      perform(machine_.formed());
      take_in();
      look_for_spares();
    });
  }

  void look_for_spares() {
    if (state_ == State::training && !standing_by_.empty())
      perform(machine_.stand_by({standing_by_.begin(), standing_by_.end()}, nanoseconds(now_)));
  }

  void perform(const actors::NodeEffects& effects) {
    for (const auto& effect : effects) {
      std::visit([this](const auto& what) { on(what); }, effect);
    }
  }

  void on(const actors::StartGang& gang) {
    const bool is_first = run_.epochs == 0;
    for (const int slot : gang.slots) standing_by_.erase(slot);
    begin_epoch(a_.start + a_.form + (is_first ? 0 : a_.load), !is_first, is_first);
  }
  void on(const actors::ReplaceRanks& replaced) {
    double starts = 0;
    for (const auto& loss : replaced.losses) {
      if (loss.remedy == actors::Remedy::start_again) starts = a_.start;
    }
    for (const int slot : replaced.slots) standing_by_.erase(slot);
    const double state = a_.replicated ? a_.take : a_.load;
    begin_epoch(a_.notice + starts + a_.form + state, false, a_.replicated);
  }
  void on(const actors::FormAgain&) { begin_epoch(a_.form + a_.load, false, false); }
  void on(const actors::AskToWait&) {
    later_in_epoch(0, [this] {
      perform(machine_.waited_for(std::vector<bool>(machine_.slots().size(), true), nanoseconds(now_)));
    });
  }
  void on(const actors::AdmitSpares& admitted) {
    for (const int slot : admitted.slots) standing_by_.erase(slot);
    begin_epoch(a_.form + a_.take, false, true);
  }
  void on(const actors::StartSpare& spare) {
    later(a_.start, [this, slot = spare.slot] {
      if (!machine_.spares().contains(slot)) return;
      standing_by_.insert(slot);
      look_for_spares();
    });
  }
  void on(const actors::SignalRank& signal) {
    later(0, [this, rank = signal.rank, number = signal.signal] {
      if (rank >= 0) perform(machine_.exited(rank, {0, number}, nanoseconds(now_)));
    });
  }
  void on(const actors::ArmDeadline& armed) {
    const double after = std::chrono::duration<double>(armed.after).count();
    later(after, [this, number = ++deadlines_] {
      if (number == deadlines_) perform(machine_.deadline(nanoseconds(now_)));
    });
  }
  void on(const actors::CancelDeadline&) { ++deadlines_; }
  void on(const actors::EndGeneration&) {
    if (state_ == State::training) {
      run_.lost.again += unsaved() * static_cast<double>(machine_.slots().size()) / a_.ranks;
      trained_ -= unsaved();
    }
    state_ = State::waiting;
    ++epoch_;
    later(0, [this] {
      for (int node = 0; node < nodes(); ++node) {
        if (!absent_.contains(node)) perform(machine_.node_ready(node, nanoseconds(now_)));
      }
    });
  }
  void on(const actors::SpareLost&) {}
  void on(const actors::Finish&) { state_ = State::waiting; }

  const GoodputArguments& a_;
  double save_every_;
  double end_;
  actors::RandomStream random_;
  actors::NodeAgentMachine machine_;
  double now_ = 0;
  State state_ = State::waiting;
  double trained_ = 0;  ///< seconds that count, with however many ranks
  std::multimap<double, std::function<void()>> events_;
  std::set<int> absent_;
  std::set<int> standing_by_;
  std::uint64_t epoch_ = 0;
  std::uint64_t deadlines_ = 0;
  std::uint64_t reported_ = 0;
  GoodputRun run_;
};

}  // namespace

namespace {

constexpr double kHardly = 1e-9;

/// J. W. Young, A first order approximation to the optimum checkpoint interval, 1974: the square root of
/// twice what a save costs times the mean time between failures.
double interval_of_young(const GoodputArguments& a) {
  const double between_failures = a.mtbf_hours * kHour / a.ranks;
  return std::max(std::sqrt(2 * std::max(a.stall, kHardly) * between_failures), a.write);
}

struct Summary {
  double save_every = 0;
  GoodputLosses lost;  ///< means
  double least = 1, most = 0;
  double failures = 0, epochs = 0;

  double goodput() const { return 1 - lost.sum(); }
};

Result<Summary> summary_of(const GoodputArguments& a, double save_every) {
  Summary summary{.save_every = save_every};
  for (int run = 0; run < a.runs; ++run) {
    const auto found = TRY(simulate_goodput(a, save_every, a.seed + static_cast<std::uint64_t>(run)));
    const double part = 1.0 / a.runs;
    auto& mean = summary.lost;
    mean.saving += part * found.lost.saving;
    mean.recovering += part * found.lost.recovering;
    mean.again += part * found.lost.again;
    mean.waiting += part * found.lost.waiting;
    mean.fewer += part * found.lost.fewer;
    summary.least = std::min(summary.least, 1 - found.lost.sum());
    summary.most = std::max(summary.most, 1 - found.lost.sum());
    summary.failures += part * found.failures;
    summary.epochs += part * found.epochs;
  }
  return summary;
}

nlohmann::json json_of(const Summary& summary) {
  const auto& lost = summary.lost;
  return {{"save_every_seconds", summary.save_every},
          {"goodput", summary.goodput()},
          {"least", summary.least},
          {"most", summary.most},
          {"failures", summary.failures},
          {"epochs", summary.epochs},
          {"lost",
           {{"saving", lost.saving},
            {"recovering", lost.recovering},
            {"steps_again", lost.again},
            {"waiting_for_nodes", lost.waiting},
            {"fewer_ranks", lost.fewer}}}};
}

std::string line_of(const Summary& summary) {
  const auto& lost = summary.lost;
  return fmt::format(
      "{:>10.0f} s  {:>7.2f} %  {:>7.2f} %  {:>10.2f} %  {:>11.2f} %  {:>7.2f} %  {:>5.2f} %\n",
      summary.save_every, 100 * summary.goodput(), 100 * lost.saving, 100 * lost.recovering, 100 * lost.again,
      100 * lost.waiting, 100 * lost.fewer);
}

}  // namespace

Result<GoodputRun> simulate_goodput(const GoodputArguments& arguments, double save_every,
                                    std::uint64_t seed) {
  TRY(check(arguments));
  return Job(arguments, save_every, seed).run();
}

Result<std::string> report_goodput(const GoodputArguments& arguments) {
  const double interval = arguments.save_every > 0 ? arguments.save_every : interval_of_young(arguments);
  std::vector<Summary> all;
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0})
    all.push_back(TRY(summary_of(arguments, factor * interval)));
  const auto best = std::ranges::max_element(all, {}, &Summary::goodput);
  const auto& chosen = arguments.save_every > 0 ? all[2] : *best;
  if (arguments.json) {
    nlohmann::json json = json_of(chosen);
    json["interval_of_young_seconds"] = interval_of_young(arguments);
    json["intervals"] = nlohmann::json::array();
    for (const auto& each : all) json["intervals"].push_back(json_of(each));
    return json.dump(2) + "\n";
  }
  std::string text = fmt::format(
      "{} ranks, {} nodes to spare, {} runs of {:g} days: {:.0f} failures each, {:.0f} epochs\n"
      "goodput {:.2f} % ({:.2f} to {:.2f}) with a save every {:.0f} s; Young's interval is {:.0f} s\n\n"
      "save every    goodput    saving  recovering  steps again  waiting  fewer\n",
      arguments.ranks, arguments.spare_nodes, arguments.runs, arguments.days, chosen.failures, chosen.epochs,
      100 * chosen.goodput(), 100 * chosen.least, 100 * chosen.most, chosen.save_every,
      interval_of_young(arguments));
  for (const auto& each : all) text += line_of(each);
  return text;
}

}  // namespace troupe::apps
