#include "core/program/fold.hpp"

#include <algorithm>
#include <cstddef>

namespace troupe::core {
namespace {

/// Entries of a unit, in both sweeps, hardly ever are more.
constexpr std::size_t kLongestPattern = 12;

struct Repeat {
  std::size_t period = 1;
  std::size_t times = 1;
  int unit_step = 0;
};

/// How often the `period` entries at `first` come again, each time for a unit `step` further on.
std::size_t times_of(const std::vector<ProgramEntry>& entries, std::size_t first, std::size_t period,
                     int step) {
  std::size_t times = 1;
  for (; first + (times + 1) * period <= entries.size(); ++times) {
    for (std::size_t i = 0; i < period; ++i) {
      const ProgramEntry& before = entries[first + (times - 1) * period + i];
      if (shifted(before, step) != entries[first + times * period + i]) return times;
    }
  }
  return times;
}

Repeat longest_repeat(const std::vector<ProgramEntry>& entries, std::size_t first) {
  Repeat best;
  for (std::size_t period = 1; period <= kLongestPattern && first + 2 * period <= entries.size(); ++period) {
    const int step = entries[first + period].tensor.unit - entries[first].tensor.unit;
    const std::size_t times = times_of(entries, first, period, step);
    if (times > 1 && times * period > best.times * best.period) best = {period, times, step};
  }
  return best;
}

}  // namespace

std::vector<ProgramRun> fold(const std::vector<ProgramEntry>& entries) {
  std::vector<ProgramRun> runs;
  for (std::size_t first = 0; first < entries.size();) {
    const Repeat repeat = longest_repeat(entries, first);
    const auto begin = entries.begin() + static_cast<std::ptrdiff_t>(first);
    runs.push_back({.entries = {begin, begin + static_cast<std::ptrdiff_t>(repeat.period)},
                    .times = static_cast<int>(repeat.times),
                    .unit_step = repeat.unit_step});
    first += repeat.period * repeat.times;
  }
  return runs;
}

std::vector<UnitRun> fold(const std::vector<Unit>& units) {
  std::vector<UnitRun> runs;
  for (const Unit& unit : units) {
    if (runs.empty() || runs.back().unit != unit) runs.push_back({unit, 0});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace troupe::core
