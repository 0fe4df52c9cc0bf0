#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/checkpoint/value.hpp"

namespace troupe::core {
namespace {

/// Positions of the entries by key.
std::map<Key, std::size_t> positions(const std::vector<Value::Entry>& entries) {
  std::map<Key, std::size_t> result;
  for (std::size_t i = 0; i < entries.size(); ++i) result.emplace(entries[i].key, i);
  return result;
}

void compare(const Value& left, const Value& right, const Trail& at, ValueDifference& result);

void compare_maps(const Value::Map& left, const Value::Map& right, const Trail& at, ValueDifference& result) {
  auto unseen = positions(right.entries());
  for (const auto& [key, value] : left.entries()) {
    const Trail here(at, key);
    const auto other = unseen.find(key);
    if (other == unseen.end()) {
      result.only_left.push_back(here.path());
    } else {
      compare(value, right.entries()[other->second].value, here, result);
      unseen.erase(other);
    }
  }
  for (const auto& entry : right.entries()) {
    if (unseen.contains(entry.key)) result.only_right.push_back(Trail(at, entry.key).path());
  }
}

void compare_lists(const Value::List& left, const Value::List& right, const Trail& at,
                   ValueDifference& result) {
  for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    const Trail here(at, static_cast<std::int64_t>(i));
    if (i >= right.size()) {
      result.only_left.push_back(here.path());
    } else if (i >= left.size()) {
      result.only_right.push_back(here.path());
    } else {
      compare(left[i], right[i], here, result);
    }
  }
}

void compare(const Value& left, const Value& right, const Trail& at, ValueDifference& result) {
  if (left.as_map() != nullptr && right.as_map() != nullptr) {
    compare_maps(*left.as_map(), *right.as_map(), at, result);
  } else if (left.as_list() != nullptr && right.as_list() != nullptr) {
    compare_lists(*left.as_list(), *right.as_list(), at, result);
  } else if (!(left == right)) {
    result.mismatches.push_back({at.path(), left.kind(), right.kind()});
  }
}

std::string list_of(const std::vector<KeyPath>& paths) {
  std::string text = "[";
  for (const KeyPath& path : paths) text += (text.size() > 1 ? ", " : "") + to_string(path);
  return text + "]";
}

Result<void> check_merge(const Value& into, const Value& from, const Trail& at) {
  if (into.as_map() != nullptr && from.as_map() != nullptr) {
    const auto known = positions(into.as_map()->entries());
    for (const auto& [key, value] : from.as_map()->entries()) {
      const auto other = known.find(key);
      if (other == known.end()) continue;
      TRY(check_merge(into.as_map()->entries()[other->second].value, value, Trail(at, key)));
    }
    return {};
  }
  if (into.as_list() != nullptr && from.as_list() != nullptr) {
    const auto& left = *into.as_list();
    const auto& right = *from.as_list();
    if (left.size() != right.size()) {
      return fail(Errc::mismatch,
                  "cannot merge two lists with different lengths at {}: {} and {} items; structure that "
                  "differs between ranks does not belong into the common state",
                  to_string(at), left.size(), right.size());
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
      TRY(check_merge(left[i], right[i], Trail(at, static_cast<std::int64_t>(i))));
    }
    return {};
  }
  return fail(Errc::mismatch,
              "cannot merge at {}: both sides have a value there, of type {} and {}; only maps and lists "
              "merge, so one of the two must go",
              to_string(at), name_of(into.kind()), name_of(from.kind()));
}

}  // namespace

/// Sees the entries of a map, so that a merge needs no search per entry.
class ValueMerger {
 public:
  static void merge(Value& into, Value from) {
    if (Value::Map* map = into.as_map()) {
      merge_maps(map->entries_, std::move(from.as_map()->entries_));
      return;
    }
    Value::List& items = *into.as_list();
    for (std::size_t i = 0; i < items.size(); ++i) merge(items[i], std::move((*from.as_list())[i]));
  }

 private:
  static void merge_maps(std::vector<Value::Entry>& into, std::vector<Value::Entry> from) {
    const auto known = positions(into);
    for (auto& entry : from) {
      const auto other = known.find(entry.key);
      if (other == known.end()) {
        into.push_back(std::move(entry));
      } else {
        merge(into[other->second].value, std::move(entry.value));
      }
    }
  }
};

ValueDifference diff(const Value& left, const Value& right) {
  ValueDifference result;
  compare(left, right, Trail(), result);
  return result;
}

std::string to_string(const ValueDifference& difference) {
  std::string mismatches = "[";
  for (const auto& [path, left, right] : difference.mismatches) {
    if (mismatches.size() > 1) mismatches += ", ";
    mismatches += fmt::format("({}, {}, {})", to_string(path), name_of(left), name_of(right));
  }
  return fmt::format("only left: {}, only right: {}, mismatches: {}]", list_of(difference.only_left),
                     list_of(difference.only_right), mismatches);
}

Result<void> merge(Value& into, Value from) {
  TRY(check_merge(into, from, Trail()));
  ValueMerger::merge(into, std::move(from));
  return {};
}

}  // namespace troupe::core
