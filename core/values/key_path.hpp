#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/values/value.hpp"

namespace troupe::core {

/// The path from the root of nested maps and lists to one of their nodes.
using KeyPath = std::vector<Key>;

/// "('model', 0)"; "('rank',)" for a single key; "()" for the root.
std::string to_string(const KeyPath& path);

/// The path of a recursion, without an allocation per step: every level keeps its Trail on the stack.
class Trail {
 public:
  Trail() = default;
  /// Both arguments must outlive the Trail.
  Trail(const Trail& parent, const Key& key) : parent_(&parent), key_(&key), depth_(parent.depth_ + 1) {}
  Trail(const Trail& parent, std::int64_t index)
      : parent_(&parent), index_(index), depth_(parent.depth_ + 1) {}

  int depth() const { return depth_; }
  KeyPath path() const;

 private:
  const Trail* parent_ = nullptr;
  const Key* key_ = nullptr;
  std::int64_t index_ = 0;
  int depth_ = 0;
};

/// "('model', 0)".
std::string to_string(const Trail& trail);

}  // namespace troupe::core
