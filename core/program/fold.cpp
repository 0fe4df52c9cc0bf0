#include "core/program/fold.hpp"

#include <algorithm>
#include <cstddef>

#include "core/program/repeats.hpp"

namespace troupe::core {
namespace {

/// A unit rarely has more entries, over both sweeps.
constexpr std::size_t kLongestPattern = 12;

/// All entries of one round.
std::vector<ProgramRun> fold_units(const std::vector<ProgramEntry>& entries, int round) {
  std::vector<ProgramRun> runs;
  const auto step = [](const ProgramEntry& a, const ProgramEntry& b) {
    return b.tensor.unit - a.tensor.unit;
  };
  // Entries are moved to unit 0 once, not for every comparison.
  std::vector<ProgramEntry> of_first;
  of_first.reserve(entries.size());
  for (const ProgramEntry& entry : entries) of_first.push_back(shifted(entry, -entry.tensor.unit));
  const auto is_advanced = [&](std::size_t earlier, std::size_t later, int units) {
    const ProgramEntry &entry = entries[earlier], &next = entries[later];
    if (entry.tensor.kind == TensorKind::verdict) return shifted(entry, units) == next;
    return entry.tensor.unit + units == next.tensor.unit && of_first[earlier] == of_first[later];
  };
  for (std::size_t first = 0; first < entries.size();) {
    const auto repeat = longest_repeat(entries, first, kLongestPattern, step, is_advanced);
    const auto begin = entries.begin() + static_cast<std::ptrdiff_t>(first);
    runs.push_back({.entries = {begin, begin + static_cast<std::ptrdiff_t>(repeat.period)},
                    .times = static_cast<int>(repeat.times),
                    .unit_step = repeat.step,
                    .round = round});
    first += repeat.period * repeat.times;
  }
  return runs;
}

}  // namespace

std::vector<ProgramRun> fold(const std::vector<ProgramEntry>& entries) {
  return fold_units(entries, 0);
}

std::vector<ProgramSegment> fold(const std::vector<PlacedEntry>& entries) {
  std::vector<ProgramRun> runs;
  for (std::size_t first = 0; first < entries.size();) {
    std::vector<ProgramEntry> alike;
    const int round = entries[first].round;
    for (; first < entries.size() && entries[first].round == round; ++first) {
      alike.push_back(entries[first].entry);
    }
    const auto folded = fold_units(alike, round);
    runs.insert(runs.end(), folded.begin(), folded.end());
  }
  const auto step = [](const ProgramRun& a, const ProgramRun& b) { return b.round - a.round; };
  const auto is_advanced = [&runs](std::size_t earlier, std::size_t later, int rounds) {
    const ProgramRun &run = runs[earlier], &next = runs[later];
    return run.round + rounds == next.round && run.times == next.times && run.unit_step == next.unit_step &&
           run.entries == next.entries;
  };
  std::vector<ProgramSegment> segments;
  for (std::size_t first = 0; first < runs.size();) {
    const auto repeat = longest_repeat(runs, first, kLongestSteadyState, step, is_advanced);
    const auto begin = runs.begin() + static_cast<std::ptrdiff_t>(first);
    const bool joins = repeat.times == 1 && !segments.empty() && segments.back().times == 1;
    if (!joins) {
      segments.push_back({.times = static_cast<int>(repeat.times), .runs = {}, .round_step = repeat.step});
    }
    auto& into = segments.back().runs;
    into.insert(into.end(), begin, begin + static_cast<std::ptrdiff_t>(repeat.period));
    first += repeat.period * repeat.times;
  }
  return segments;
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
