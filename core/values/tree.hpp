#pragma once

#include <string>
#include <string_view>
#include <vector>

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

}  // namespace troupe::core
