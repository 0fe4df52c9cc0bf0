#include "actors/roles/roll_call.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace troupe::actors {

namespace {

using Accounts = std::map<core::Rank, messages::StepAccount>;

/// More of a list are counted, not named.
constexpr std::size_t kMostNamed = 8;

/// Those that said the same, in the order of the first of each.
using Said = std::vector<std::pair<std::string, std::vector<std::int32_t>>>;

void add(Said& said, const std::string& what, core::Rank rank) {
  auto found = std::find_if(said.begin(), said.end(), [&](const auto& one) { return one.first == what; });
  if (found == said.end()) found = said.insert(said.end(), {what, {}});
  found->second.push_back(rank.value);
}

std::string names_of(std::vector<std::int32_t> ranks) {
  const auto count = ranks.size();
  ranks.resize(std::min(count, kMostNamed));
  return fmt::format("rank{} {}{}", count == 1 ? "" : "s", fmt::join(ranks, ", "),
                     count > kMostNamed ? fmt::format(" and {} more", count - kMostNamed) : "");
}

std::string refusal_of(const Accounts& accounts) {
  Said said;
  for (const auto& [rank, account] : accounts) {
    if (!account.refusal.empty()) add(said, account.refusal, rank);
  }
  std::vector<std::string> texts;
  for (const auto& [why, ranks] : said) texts.push_back(fmt::format("{}: {}", names_of(ranks), why));
  const auto count = texts.size();
  texts.resize(std::min(count, kMostNamed));
  return fmt::format(
      "refused by {}{}", fmt::join(texts, "; "),
      count > kMostNamed ? fmt::format("; and by others for {} more reasons", count - kMostNamed) : "");
}

/// Names what ranks differ in; empty if all have the same.
std::string difference_in(const Said& said, const std::string& what) {
  if (said.size() < 2) return {};
  std::vector<std::string> texts;
  for (const auto& [how, ranks] : said) texts.push_back(fmt::format("{} on {}", how, names_of(ranks)));
  texts.resize(std::min(texts.size(), kMostNamed));
  return fmt::format("{}: {}", what, fmt::join(texts, ", "));
}

/// `line` is that of the things that must be alike.
std::string difference_in(const Accounts& accounts, std::size_t line) {
  Said said;
  std::string what;
  for (const auto& [rank, account] : accounts) {
    const auto text = line < account.alike.size() ? account.alike[line] : std::string();
    const auto colon = std::min(text.find(": "), text.size());
    if (what.empty()) what = text.substr(0, colon);
    add(said, colon < text.size() ? text.substr(colon + 2) : "nothing", rank);
  }
  return difference_in(said, "ranks differ in " + what);
}

std::uint64_t count_of(const messages::CallCounts& calls, messages::Call call) {
  const auto index = static_cast<std::size_t>(call);
  return index < calls.size() ? calls[index] : 0;
}

std::string times(std::uint64_t count) {
  return count == 1 ? "once" : fmt::format("{} times", count);
}

}  // namespace

std::string reason_of(const Accounts& accounts) {
  std::size_t lines = 0;
  for (const auto& [rank, account] : accounts) lines = std::max(lines, account.alike.size());
  for (std::size_t line = 0; line < lines; ++line) {
    auto difference = difference_in(accounts, line);
    if (!difference.empty()) return difference;
  }
  return refusal_of(accounts);
}

std::optional<std::string> difference_in_calls(const Accounts& accounts) {
  for (std::size_t call = 0; call < messages::kCallNames.size(); ++call) {
    Said said;
    for (const auto& [rank, account] : accounts)
      add(said, times(count_of(account.calls, static_cast<messages::Call>(call))), rank);
    const auto difference =
        difference_in(said, fmt::format("ranks have not called {} alike", messages::kCallNames[call]));
    if (!difference.empty()) return difference + "; all ranks make the same calls between the same steps";
  }
  return {};
}

void RollCall::add(const messages::TrainerCalls& calls) {
  last_[calls.rank] = calls;
}

/// By a rank that waits itself.
bool RollCall::is_blocked(const messages::TrainerCalls& own) const {
  return std::any_of(last_.begin(), last_.end(), [&](const auto& other) {
    return other.second.waits && count_of(other.second.calls, own.needs) < own.count;
  });
}

std::optional<std::string> RollCall::deadlock() const {
  if (last_.size() < static_cast<std::size_t>(world_.value)) return {};
  std::vector<std::string> texts;
  for (const auto& [rank, own] : last_) {
    if (!own.waits || !is_blocked(own)) return {};
    if (texts.size() < kMostNamed) texts.push_back(describe(rank));
  }
  return fmt::format(
      "the ranks wait for each other in different calls: {}; all ranks make the same calls in "
      "the same order",
      fmt::join(texts, ", "));
}

std::string RollCall::news() {
  std::vector<std::string> texts;
  for (const auto& [rank, own] : last_) {
    if (!own.waits || own.needs == messages::Call::begin_step || missing(own).empty()) continue;
    if (!told_.insert({rank, own.needs, own.count}).second) continue;
    if (texts.size() < kMostNamed) texts.push_back(describe(rank));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// Ranks that have not made the call, as far as is known: of begin_step() they tell only when they wait.
std::vector<std::int32_t> RollCall::missing(const messages::TrainerCalls& own) const {
  std::vector<std::int32_t> ranks;
  for (std::int32_t other = 0; other < world_.value; ++other) {
    const auto found = last_.find({other});
    if (found == last_.end() || count_of(found->second.calls, own.needs) < own.count) ranks.push_back(other);
  }
  return ranks;
}

std::string RollCall::describe(core::Rank rank) const {
  const auto& own = last_.at(rank);
  return fmt::format("rank {} waits in {} for {} to call it", rank.value, messages::name_of(own.needs),
                     names_of(missing(own)));
}

}  // namespace troupe::actors
