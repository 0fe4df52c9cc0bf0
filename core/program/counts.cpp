#include "core/program/counts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr auto kKindNames = enum_names<CountKind>("even", "table", "bounded");

}  // namespace

std::string_view name_of(CountKind kind) noexcept {
  return kKindNames[kind];
}

Counts Counts::even(std::int64_t elements, std::int64_t members) {
  return {.kind = CountKind::even, .runs = {{elements, members}}};
}

Counts Counts::bounded(std::int64_t most, std::int64_t members) {
  return {.kind = CountKind::bounded, .runs = {{most, members}}};
}

Counts Counts::table(const std::vector<std::int64_t>& elements) {
  std::vector<CountRun> runs;
  for (const std::int64_t count : elements) {
    if (runs.empty() || runs.back().elements != count) runs.push_back({count, 0});
    ++runs.back().members;
  }
  return of_runs(runs);
}

Counts Counts::of_runs(const std::vector<CountRun>& runs) {
  Counts counts;
  for (const auto& [elements, members] : runs) {
    if (members == 0) continue;
    if (counts.runs.empty() || counts.runs.back().elements != elements) counts.runs.push_back({elements, 0});
    counts.runs.back().members += members;
  }
  counts.kind = counts.runs.size() == 1 ? CountKind::even : CountKind::table;
  return counts;
}

std::int64_t Counts::members() const {
  std::int64_t members = 0;
  for (const CountRun& run : runs) members += run.members;
  return members;
}

std::int64_t Counts::total() const {
  std::int64_t total = 0;
  for (const CountRun& run : runs) total += run.elements * run.members;
  return total;
}

std::int64_t Counts::most() const {
  std::int64_t most = 0;
  for (const CountRun& run : runs) most = std::max(most, run.elements);
  return most;
}

std::int64_t Counts::of(std::int64_t member) const {
  for (const CountRun& run : runs) {
    if (member < run.members) return run.elements;
    member -= run.members;
  }
  CHECK(false, "a member is one of the group's");
}

std::vector<std::int64_t> Counts::each() const {
  std::vector<std::int64_t> each;
  each.reserve(static_cast<std::size_t>(members()));
  for (const CountRun& run : runs)
    each.insert(each.end(), static_cast<std::size_t>(run.members), run.elements);
  return each;
}

std::string Counts::text() const {
  std::string text = kind == CountKind::bounded ? "at most " : "";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    text += fmt::format("{}{}x{}", i == 0 ? "" : ",", runs[i].members, runs[i].elements);
  }
  return text;
}

}  // namespace troupe::core
