#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/values/key_path.hpp"

namespace troupe::core {

/// The differences between two trees of maps and lists. Only maps and lists are descended into; everything
/// else is compared as a whole.
struct TreeDifference {
  struct Mismatch {
    KeyPath path;
    std::string_view left;  ///< name of the type
    std::string_view right;

    friend bool operator==(const Mismatch&, const Mismatch&) = default;
  };
  std::vector<KeyPath> only_left;
  std::vector<KeyPath> only_right;
  std::vector<Mismatch> mismatches;

  bool empty() const { return only_left.empty() && only_right.empty() && mismatches.empty(); }
  friend bool operator==(const TreeDifference&, const TreeDifference&) = default;
};

/// "only left: [('a',)], only right: [], mismatches: [(('rank',), int, int)]".
std::string to_string(const TreeDifference& difference);

/// The rules for nested maps and lists. A Node has as_map(), as_list(), type_name() and ==; its Map keeps
/// `entries_`, each with `key` and `value`, and its List is a vector of Nodes. With `index_maps`, a map whose
/// keys are all indices of a list represents a part of that list.
template <class Node, bool index_maps = false>
class TreeRules {
 public:
  static void compare(const Node& left, const Node& right, const Trail& at, TreeDifference& result) {
    if (left.as_map() != nullptr && right.as_map() != nullptr) {
      compare_maps(*left.as_map(), *right.as_map(), at, result);
    } else if (left.as_list() != nullptr && right.as_list() != nullptr) {
      compare_lists(*left.as_list(), *right.as_list(), at, result);
    } else if (!(left == right)) {
      result.mismatches.push_back({at.path(), left.type_name(), right.type_name()});
    }
  }

  /// All or nothing: `into` changes only if there are no conflicts.
  static Result<void> merge(Node& into, Node from) {
    TRY(check_merge(into, from, Trail()));
    merge_checked(into, std::move(from));
    return {};
  }

 private:
  using Map = typename Node::Map;
  using List = typename Node::List;

  static std::map<Key, std::size_t> positions(const Map& map) {
    std::map<Key, std::size_t> result;
    for (std::size_t i = 0; i < map.entries_.size(); ++i) result.emplace(map.entries_[i].key, i);
    return result;
  }

  static void compare_maps(const Map& left, const Map& right, const Trail& at, TreeDifference& result) {
    auto unseen = positions(right);
    for (const auto& [key, value] : left.entries_) {
      const Trail here(at, key);
      const auto other = unseen.find(key);
      if (other == unseen.end()) {
        result.only_left.push_back(here.path());
      } else {
        compare(value, right.entries_[other->second].value, here, result);
        unseen.erase(other);
      }
    }
    for (const auto& entry : right.entries_) {
      if (unseen.contains(entry.key)) result.only_right.push_back(Trail(at, entry.key).path());
    }
  }

  static void compare_lists(const List& left, const List& right, const Trail& at, TreeDifference& result) {
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

  static bool is_index_of(const Key& key, const List& items) {
    const auto* index = std::get_if<std::int64_t>(&key);
    return index != nullptr && *index >= 0 && *index < std::ssize(items);
  }
  static std::size_t index_from(const Key& key) {
    return static_cast<std::size_t>(std::get<std::int64_t>(key));
  }

  static Result<void> check_maps(const Map& into, const Map& from, const Trail& at) {
    const auto known = positions(into);
    for (const auto& [key, value] : from.entries_) {
      const auto other = known.find(key);
      if (other == known.end()) continue;
      TRY(check_merge(into.entries_[other->second].value, value, Trail(at, key)));
    }
    return {};
  }

  static Result<void> check_lists(const List& into, const List& from, const Trail& at) {
    if (into.size() != from.size()) {
      return fail(Errc::mismatch,
                  "cannot merge two lists with different lengths at {}: {} and {} items; structure that "
                  "differs between ranks does not belong into the common state",
                  to_string(at), into.size(), from.size());
    }
    for (std::size_t i = 0; i < into.size(); ++i) {
      TRY(check_merge(into[i], from[i], Trail(at, static_cast<std::int64_t>(i))));
    }
    return {};
  }

  static Result<void> check_index_map(const List& items, const Map& part, const Trail& at) {
    for (const auto& [key, value] : part.entries_) {
      if (!is_index_of(key, items)) {
        return fail(Errc::mismatch,
                    "cannot merge at {}: there is a list of {} items and a map with the key {}; its keys "
                    "must be indices of the list",
                    to_string(at), items.size(), to_string(key));
      }
      TRY(check_merge(items[index_from(key)], value, Trail(at, key)));
    }
    return {};
  }

  static Result<void> check_merge(const Node& into, const Node& from, const Trail& at) {
    if (into.as_map() != nullptr && from.as_map() != nullptr) {
      return check_maps(*into.as_map(), *from.as_map(), at);
    }
    if (into.as_list() != nullptr && from.as_list() != nullptr) {
      return check_lists(*into.as_list(), *from.as_list(), at);
    }
    if constexpr (index_maps) {
      if (into.as_list() != nullptr && from.as_map() != nullptr) {
        return check_index_map(*into.as_list(), *from.as_map(), at);
      }
      if (into.as_map() != nullptr && from.as_list() != nullptr) {
        return check_index_map(*from.as_list(), *into.as_map(), at);
      }
    }
    return fail(Errc::mismatch,
                "cannot merge at {}: both sides have a value there, of type {} and {}; only maps and lists "
                "merge, so one of the two must go",
                to_string(at), into.type_name(), from.type_name());
  }

  static void merge_checked(Node& into, Node from) {
    if (into.as_map() != nullptr && from.as_list() != nullptr) std::swap(into, from);
    Map* const more = from.as_map();
    if (Map* map = into.as_map()) {
      const auto known = positions(*map);
      for (auto& entry : more->entries_) {
        const auto other = known.find(entry.key);
        if (other == known.end()) {
          map->entries_.push_back(std::move(entry));
        } else {
          merge_checked(map->entries_[other->second].value, std::move(entry.value));
        }
      }
      return;
    }
    List& items = *into.as_list();
    if (more != nullptr) {
      for (auto& entry : more->entries_) merge_checked(items[index_from(entry.key)], std::move(entry.value));
      return;
    }
    for (std::size_t i = 0; i < items.size(); ++i) merge_checked(items[i], std::move((*from.as_list())[i]));
  }
};

}  // namespace troupe::core
