#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/values/tree.hpp"
#include "core/values/value.hpp"

namespace troupe::core {
namespace {

std::string list_of(const std::vector<KeyPath>& paths) {
  std::string text = "[";
  for (const KeyPath& path : paths) text += (text.size() > 1 ? ", " : "") + to_string(path);
  return text + "]";
}

void compare(const Value& left, const Value& right, const Trail& at, TreeDifference& result);

void compare_maps(const Value::Map& left, const Value::Map& right, const Trail& at, TreeDifference& result) {
  std::map<Key, const Value*> unseen;
  for (const auto& [key, value] : right.entries()) unseen.emplace(key, &value);
  for (const auto& [key, value] : left.entries()) {
    const Trail here(at, key);
    const auto other = unseen.find(key);
    if (other == unseen.end()) {
      result.only_left.push_back(here.path());
    } else {
      compare(value, *other->second, here, result);
      unseen.erase(other);
    }
  }
  for (const auto& entry : right.entries()) {
    if (unseen.contains(entry.key)) result.only_right.push_back(Trail(at, entry.key).path());
  }
}

void compare_lists(const Value::List& left, const Value::List& right, const Trail& at,
                   TreeDifference& result) {
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

void compare(const Value& left, const Value& right, const Trail& at, TreeDifference& result) {
  if (left.as_map() != nullptr && right.as_map() != nullptr) {
    compare_maps(*left.as_map(), *right.as_map(), at, result);
  } else if (left.as_list() != nullptr && right.as_list() != nullptr) {
    compare_lists(*left.as_list(), *right.as_list(), at, result);
  } else if (!(left == right)) {
    result.mismatches.push_back({at.path(), left.type_name(), right.type_name()});
  }
}

}  // namespace

std::string to_string(const TreeDifference& difference) {
  std::string mismatches = "[";
  for (const auto& [path, left, right] : difference.mismatches) {
    if (mismatches.size() > 1) mismatches += ", ";
    mismatches += fmt::format("({}, {}, {})", to_string(path), left, right);
  }
  return fmt::format("only left: {}, only right: {}, mismatches: {}]", list_of(difference.only_left),
                     list_of(difference.only_right), mismatches);
}

TreeDifference diff(const Value& left, const Value& right) {
  TreeDifference result;
  compare(left, right, Trail(), result);
  return result;
}

}  // namespace troupe::core
