#include "actors/roles/stragglers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace troupe::actors {

namespace {

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// The lower one of two in the middle. There is at least one time.
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
                       std::chrono::nanoseconds(timed.step_nanoseconds), timed.lanes, timed.steps, true};
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
    std::vector<std::chrono::nanoseconds> others;
    for (const auto other : alike)
      if (other != rank) others.push_back(told_[other].lane);
    const auto usual = median_of(std::move(others));
    const auto& own = told_[rank];
    const bool is_slow = rank == slowest && milliseconds(own.lane) > kFactor * milliseconds(usual) &&
                         milliseconds(own.lane - usual) * own.lanes > kPart * milliseconds(own.step);
    if (auto news = news_of(rank, is_slow, usual); !news.empty()) said.push_back(std::move(news));
  }
  return said;
}

/// Empty unless this round was the last that it took to believe it.
std::string Stragglers::news_of(core::Rank rank, bool is_slow, std::chrono::nanoseconds usual) {
  auto& course = courses_[rank];
  course.against = is_slow == course.is_slow ? 0 : course.against + 1;
  if (course.against < kRounds) return {};
  course = {is_slow, 0};
  if (!is_slow) return fmt::format("rank {} is as fast as the others again", rank.value);
  const auto& own = told_[rank];
  return fmt::format(
      "rank {} is slow and holds up the others: it computes {:.3g} ms for a lane, {:.1f} times the {:.3g} ms "
      "that "
      "are usual with its part of the model (in the last {} steps); look at its device, its host and what "
      "its "
      "trainer reads",
      rank.value, milliseconds(own.lane), milliseconds(own.lane) / milliseconds(usual), milliseconds(usual),
      own.steps);
}

}  // namespace troupe::actors
