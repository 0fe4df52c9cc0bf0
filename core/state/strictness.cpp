#include "core/state/strictness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

/// Number of keys of a set named in a message, and of sets.
constexpr std::size_t kNamedKeys = 5;
constexpr std::size_t kNamedSets = 3;

enum class Action : std::uint8_t { ignore, log, raise, give_back };

struct Rule {
  Strictness strictness;
  std::string_view name;
  Action unexpected;
  Action missing;
};

constexpr std::array<Rule, 8> kRules{{
    {Strictness::assume_ok_unexpected, "assume_ok_unexpected", Action::ignore, Action::ignore},
    {Strictness::log_unexpected, "log_unexpected", Action::log, Action::ignore},
    {Strictness::log_all, "log_all", Action::log, Action::log},
    {Strictness::raise_unexpected, "raise_unexpected", Action::raise, Action::ignore},
    {Strictness::raise_all, "raise_all", Action::raise, Action::raise},
    {Strictness::return_unexpected, "return_unexpected", Action::give_back, Action::ignore},
    {Strictness::return_all, "return_all", Action::give_back, Action::give_back},
    {Strictness::ignore_all, "ignore_all", Action::ignore, Action::ignore},
}};

const Rule& rule_of(Strictness strictness) {
  return kRules.at(static_cast<std::size_t>(strictness));
}

KeySet without(const KeySet& keys, const KeySet& others) {
  KeySet rest;
  std::set_difference(keys.begin(), keys.end(), others.begin(), others.end(),
                      std::inserter(rest, rest.end()));
  rest.erase(std::string(kCommonStateKey));
  return rest;
}

KeySet missing_keys(const KeySet& checkpoint, std::span<const KeySet> requests) {
  KeySet rest = checkpoint;
  for (const KeySet& request : requests) {
    if (!rest.empty()) rest = without(rest, request);
  }
  rest.erase(std::string(kCommonStateKey));
  return rest;
}

std::string listed(const KeySet& keys) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(keys.size(), kNamedKeys));
  std::string text = fmt::format("{}", fmt::join(keys.begin(), std::next(keys.begin(), count), ", "));
  if (keys.size() > kNamedKeys) text += fmt::format(" and {} more", keys.size() - kNamedKeys);
  return text;
}

/// "0-3, 7".
std::string ranges(const std::vector<std::size_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return text;
}

/// Empty if no rank has any. Ranks with the same keys share a line. `unexpected` is per set.
std::string unexpected_text(const KeyRequests& requests, const std::vector<KeySet>& unexpected) {
  std::map<std::vector<std::size_t>, std::vector<std::size_t>> ranks_by_sets;
  for (std::size_t rank = 0; rank < requests.of_ranks.size(); ++rank)
    ranks_by_sets[requests.of_ranks[rank]].push_back(rank);
  std::map<KeySet, std::vector<std::size_t>> ranks_by_keys;
  for (const auto& [sets, ranks] : ranks_by_sets) {
    auto keys = requests.keys_of_rank(ranks.front(), unexpected);
    if (keys.empty()) continue;
    auto& alike = ranks_by_keys[std::move(keys)];
    alike.insert(alike.end(), ranks.begin(), ranks.end());
    std::sort(alike.begin(), alike.end());
  }
  std::string text;
  std::size_t named = 0;
  for (const auto& [keys, ranks] : ranks_by_keys) {
    if (named++ == kNamedSets) {
      text += fmt::format("; and others on other ranks, {} sets in all", ranks_by_keys.size());
      break;
    }
    text += fmt::format("{} {} on rank(s) {}", text.empty() ? "" : ";", listed(keys), ranges(ranks));
  }
  return text.empty() ? text : "Unexpected keys (requested, but not in the checkpoint):" + text;
}

std::string missing_text(const KeySet& missing) {
  if (missing.empty()) return {};
  return "Missing keys (in the checkpoint, but requested by no rank): " + listed(missing);
}

/// What begins every key of `with` that is a key of `without` else; nothing if there is no such beginning.
/// Keys of optimizers' states begin otherwise and do not count.
std::string common_prefix(const KeySet& with, const KeySet& without) {
  const auto is_state = [](const std::string& key) { return key.starts_with("optimizer."); };
  const auto first = std::find_if_not(without.begin(), without.end(), is_state);
  if (first == without.end()) return {};
  for (const auto& key : with) {
    if (is_state(key) || key.size() <= first->size() || !key.ends_with(*first)) continue;
    const auto prefix = key.substr(0, key.size() - first->size());
    const auto fits = [&](const std::string& one) { return is_state(one) || with.contains(prefix + one); };
    if (prefix.back() == '.' && std::all_of(without.begin(), without.end(), fits)) return prefix;
  }
  return {};
}

/// Says which beginning makes the names of the two fit, if one does.
std::string prefix_text(const std::vector<KeySet>& unexpected, const KeySet& missing) {
  KeySet requested;
  for (const auto& keys : unexpected) requested.insert(keys.begin(), keys.end());
  if (const auto prefix = common_prefix(missing, requested); !prefix.empty()) {
    return fmt::format(
        ". All names differ by the prefix '{0}', which those of the checkpoint have: register the "
        "parameters with it, or import the checkpoint again with --rename {0}=",
        prefix);
  }
  if (const auto prefix = common_prefix(requested, missing); !prefix.empty()) {
    return fmt::format(
        ". All names differ by the prefix '{0}', which those of the checkpoint lack: register the "
        "parameters without it",
        prefix);
  }
  return {};
}

std::string joined(const std::string& unexpected, const std::string& missing) {
  return unexpected.empty() || missing.empty() ? unexpected + missing : unexpected + ". " + missing;
}

}  // namespace

std::string_view name_of(Strictness strictness) noexcept {
  return rule_of(strictness).name;
}

Result<Strictness> strictness_from_name(std::string_view name) {
  std::string names;
  for (const Rule& rule : kRules) {
    if (rule.name == name) return rule.strictness;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", rule.name);
  }
  return fail(Errc::invalid_argument, "unknown strictness \"{}\", expected one of {}", name, names);
}

KeySet KeyRequests::keys_of_rank(std::size_t rank, std::span<const KeySet> parts) const {
  KeySet keys;
  for (const auto set : of_ranks[rank]) keys.insert(parts[set].begin(), parts[set].end());
  return keys;
}

StrictnessVerdict judge_keys(Strictness strictness, const KeyRequests& requests, const KeySet& checkpoint) {
  const auto& sets = requests.sets;
  StrictnessVerdict verdict{.dropped = std::vector<KeySet>(sets.size()),
                            .unexpected = std::vector<KeySet>(sets.size())};
  if (strictness == Strictness::assume_ok_unexpected) return verdict;
  const Rule& rule = rule_of(strictness);
  for (std::size_t set = 0; set < sets.size(); ++set) verdict.dropped[set] = without(sets[set], checkpoint);
  const KeySet missing = rule.missing == Action::ignore ? KeySet{} : missing_keys(checkpoint, sets);
  const auto text_for = [&](Action action) {
    return joined(rule.unexpected == action ? unexpected_text(requests, verdict.dropped) : "",
                  rule.missing == action ? missing_text(missing) : "");
  };
  if (auto text = text_for(Action::log); !text.empty()) verdict.warning = std::move(text);
  if (auto text = text_for(Action::raise); !text.empty()) {
    text += prefix_text(verdict.dropped, missing_keys(checkpoint, sets));
    text += ". Choose a less strict mode to load without them";
    verdict.error = Error{Errc::mismatch, std::move(text)};
  }
  if (rule.unexpected == Action::give_back) verdict.unexpected = verdict.dropped;
  if (rule.missing == Action::give_back) verdict.missing = missing;
  return verdict;
}

}  // namespace troupe::core
