#include "core/program/step_time.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "core/list.hpp"
#include "core/program/exchange.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/memory.hpp"

namespace troupe::core {
namespace {

/// A launch with its points numbered.
struct Timed {
  std::int64_t ready = 0;
  std::int64_t needed = 0;
  int stream = 0;
  std::size_t communicator = 0;
  double seconds = 0;
  double over = 0;  ///< completion time, once started
};

double elements_of(const Unit& unit) {
  return std::accumulate(unit.tensors.begin(), unit.tensors.end(), 0.0, [](double sum, const FlatTensor& t) {
    return sum + static_cast<double>(t.elements);
  });
}

/// The share of each unit in a round's computation.
std::vector<double> shares_of(const Program& program) {
  std::vector<double> shares;
  double all = 0;
  for (const UnitRun& run : program.units) {
    shares.insert(shares.end(), static_cast<std::size_t>(run.count), elements_of(run.unit));
    all += elements_of(run.unit) * run.count;
  }
  for (double& share : shares) {
    share = all > 0 ? share / all : 1.0 / static_cast<double>(shares.size());
  }
  return shares;
}

class Timeline {
 public:
  Timeline(const Program& program, const Links& links, double round_seconds)
      : clock_(program.clock()),
        rounds_(program.rounds),
        shares_(shares_of(program)),
        round_seconds_(round_seconds),
        free_(static_cast<std::size_t>(program.streams)),
        next_forward_(shares_.size()) {
    for_each_launch(program, [&](const Launch& launch) { add(program, launch, links); });
    needed_at_.resize(static_cast<std::size_t>(clock_.points()));
    for (std::size_t i = 0; i < launches_.size(); ++i) {
      needed_at_[launches_[i].needed].push_back(i);
    }
  }

  StepTime run() {
    // The first step has no gathers of a previous step.
    step();
    const double began = now_;
    for (auto& communicator : time_.communicators) communicator.exposed_seconds = 0;
    step();
    time_.step_seconds = now_ - began;
    time_.compute_seconds = shares_.empty() ? 0 : round_seconds_ * rounds_;
    return time_;
  }

 private:
  struct Waited {
    double until = 0;
    std::size_t communicator = 0;
  };

  void add(const Program& program, const Launch& launch, const Links& links) {
    const ProgramEntry& entry = *launch.entry;
    const auto communicator = communicator_of(entry);
    auto& known = time_.communicators;
    auto found = std::find_if(known.begin(), known.end(),
                              [&](const CommunicationTime& one) { return one.communicator == communicator; });
    if (found == known.end()) {
      found = known.insert(
          found, {.communicator = communicator, .within_node = is_within_node(program, entry, links)});
    }
    const auto place = place_in(program, entry);
    const double seconds = seconds_of(entry, place, found->within_node ? links.inner : links.outer);
    ++found->launches;
    found->bytes += bytes_sent(entry, place);
    found->seconds += seconds;
    launches_.push_back({.ready = clock_.at(entry.ready, launch.round),
                         .needed = clock_.at(entry.needed, launch.round),
                         .stream = entry.stream,
                         .communicator = static_cast<std::size_t>(found - known.begin()),
                         .seconds = seconds});
  }

  double computes(const TrainerPoint& point) const {
    const bool is_backward = point.phase == Phase::backward || point.phase == Phase::weights;
    if (point.phase != Phase::forward && !is_backward) return 0;
    const double share = shares_[point.unit] * round_seconds_;
    return is_backward && !clock_.is_split() ? share * 2 / 3 : share / 3;
  }

  void wait(const Waited& waited) {
    if (waited.until <= now_) return;
    time_.communicators[waited.communicator].exposed_seconds += waited.until - now_;
    now_ = waited.until;
  }

  /// Everything before the next launch on a stream is complete when it starts.
  void start(std::size_t& next, std::int64_t passed) {
    for (; next < launches_.size() && launches_[next].ready <= passed; ++next) {
      Timed& launch = launches_[next];
      double& stream = free_[launch.stream];
      stream = launch.over = std::max(stream, now_) + launch.seconds;
    }
  }

  void step() {
    std::size_t next = 0;
    const std::int64_t end = clock_.at({Phase::step_end, 0}, 0);
    for (std::int64_t at = 0; at <= end; ++at) {
      const TrainerPoint point = clock_.point(at);
      for (const std::size_t launch : needed_at_[at]) {
        wait({launches_[launch].over, launches_[launch].communicator});
      }
      if (point.phase == Phase::forward && clock_.round_of(at) == 0) {
        for (const Waited& waited : next_forward_[point.unit]) wait(waited);
      }
      now_ += computes(point);
      start(next, at);
    }
    for (std::size_t unit = 0; unit < next_forward_.size(); ++unit) {
      next_forward_[unit].clear();
      const auto at = clock_.at({Phase::next_forward, static_cast<int>(unit)}, 0);
      for (const std::size_t launch : needed_at_[at]) {
        next_forward_[unit].push_back({launches_[launch].over, launches_[launch].communicator});
      }
    }
  }

  StepClock clock_;
  int rounds_;
  List<int, double> shares_;
  double round_seconds_;
  std::vector<Timed> launches_;
  List<std::int64_t, std::vector<std::size_t>> needed_at_;  ///< launches by point
  List<int, double> free_;                                  ///< when each stream is free
  List<int, std::vector<Waited>> next_forward_;             ///< by unit: what the last step left in progress
  double now_ = 0;
  StepTime time_;
};

}  // namespace

bool is_within_node(const Program& program, const ProgramEntry& entry, const Links& links) {
  const auto ranks_of = [](const Domain& domain) {
    return std::accumulate(domain.sizes.begin(), domain.sizes.end(), std::int64_t{1}, std::multiplies<>());
  };
  std::int64_t span = entry.counts.members();
  for (const Domain& domain : program.domains) {
    const auto found = std::find(domain.axes.begin(), domain.axes.end(), entry.group);
    if (found == domain.axes.end()) continue;
    const std::int64_t all = ranks_of(program.domains.front()), apart = all / ranks_of(domain);
    const bool is_last = found + 1 == domain.axes.end();
    span = (is_last ? entry.counts.members() * apart : all) * links.tensor_parallel;
  }
  return span <= links.node_ranks;
}

double seconds_of(const ProgramEntry& entry, std::int64_t place, const Link& link) {
  const std::int64_t members = entry.counts.members();
  if (members < 2) return 0;
  const auto others = static_cast<double>(members - 1);
  const double sending = static_cast<double>(bytes_sent(entry, place)) / link.bytes_per_second;
  if (entry.operation == CollectiveKind::all_to_all || entry.operation == CollectiveKind::all_gather) {
    return static_cast<double>(chunks_of(entry)) * others * link.latency_seconds + sending;
  }
  if (entry.operation != CollectiveKind::all_reduce) return others * link.latency_seconds + sending;
  const auto levels = static_cast<double>(std::bit_width(static_cast<std::uint64_t>(members - 1)));
  const double whole = static_cast<double>(entry.elements) * static_cast<double>(size_of(entry.wire));
  return std::min(2 * others * link.latency_seconds + sending,
                  2 * levels * (link.latency_seconds + whole / link.bytes_per_second));
}

double StepTime::communication_seconds() const {
  return std::accumulate(communicators.begin(), communicators.end(), 0.0,
                         [](double sum, const CommunicationTime& one) { return sum + one.seconds; });
}

StepTime step_time(const Program& program, const Links& links, double round_seconds) {
  return Timeline(program, links, round_seconds).run();
}

}  // namespace troupe::core
