#include "actors/roles/stragglers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace troupe::actors {

namespace {

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// There is at least one time.
std::chrono::nanoseconds median_of(std::vector<std::chrono::nanoseconds> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

std::vector<std::string> Stragglers::add(const messages::StepsTimed& timed) {
  const auto own = stages_.find(timed.rank);
  if (own == stages_.end()) return {};
  told_[timed.rank] = {std::chrono::nanoseconds(timed.lane_nanoseconds),
                       std::chrono::nanoseconds(timed.run_delay_nanoseconds),
                       std::chrono::nanoseconds(timed.step_nanoseconds),
                       timed.lanes,
                       timed.steps,
                       true};
  std::vector<core::Rank> alike;
  for (const auto& [rank, stage] : stages_) {
    if (stage != own->second) continue;
    if (!told_[rank].is_new) return {};
    alike.push_back(rank);
  }
  return judge(alike);
}

/// All of them have told since the last time.
std::vector<std::string> Stragglers::judge(const std::vector<core::Rank>& alike) {
  for (const auto rank : alike) told_[rank].is_new = false;
  if (alike.size() < 2) return {};
  const auto slowest = *std::ranges::max_element(alike, {}, [this](auto rank) { return told_[rank].lane; });
  std::vector<std::string> said;
  for (const auto rank : alike) {
    std::vector<std::chrono::nanoseconds> lanes, computed;
    for (const auto other : alike) {
      if (other == rank) continue;
      lanes.push_back(told_[other].lane);
      computed.push_back(told_[other].lane - told_[other].run_delay);
    }
    const Usual usual{median_of(std::move(lanes)), median_of(std::move(computed))};
    const auto verdict = rank == slowest ? verdict_of(told_[rank], usual) : Verdict::as_fast;
    if (auto news = news_of(rank, verdict, usual); !news.empty()) said.push_back(std::move(news));
  }
  return said;
}

Stragglers::Verdict Stragglers::verdict_of(const Told& own, const Usual& usual) const {
  const auto holds_up = [&](std::chrono::nanoseconds lane, std::chrono::nanoseconds others) {
    return milliseconds(lane) > kFactor * milliseconds(others) &&
           milliseconds(lane - others) * own.lanes > kPart * milliseconds(own.step);
  };
  if (!holds_up(own.lane, usual.lane)) return Verdict::as_fast;
  return holds_up(own.lane - own.run_delay, usual.computed) ? Verdict::slow : Verdict::without_processor;
}

/// Empty unless this round was the last that it took to believe it.
std::string Stragglers::news_of(core::Rank rank, Verdict verdict, const Usual& usual) {
  auto& course = courses_[rank];
  course.rounds = verdict == course.last ? course.rounds + 1 : 1;
  course.last = verdict;
  if (verdict == course.said || course.rounds < kRounds) return {};
  course.said = verdict;
  const auto& own = told_[rank];
  switch (verdict) {
    case Verdict::as_fast:
      return fmt::format("rank {} is as fast as the others again", rank.value);
    case Verdict::slow:
      return fmt::format(
          "rank {} is slow and holds up the others: it computes {:.3g} ms for a lane, {:.1f} times the "
          "{:.3g} ms that are usual with its part of the model (in the last {} steps); look at its device, "
          "its host and what its trainer reads",
          rank.value, milliseconds(own.lane), milliseconds(own.lane) / milliseconds(usual.lane),
          milliseconds(usual.lane), own.steps);
    case Verdict::without_processor:
      break;
  }
  return fmt::format(
      "rank {} holds up the others, as its host has more to do than it has processors: of {:.3g} ms for a "
      "lane it waits {:.3g} ms for one, and {:.3g} ms are usual with its part of the model (in the last {} "
      "steps); give the host fewer ranks, or less other work",
      rank.value, milliseconds(own.lane), milliseconds(own.run_delay), milliseconds(usual.lane), own.steps);
}

}  // namespace troupe::actors
