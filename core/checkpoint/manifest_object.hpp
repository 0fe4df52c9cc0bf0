#pragma once

#include <string>

#include "core/boxes/box.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// A value at a cell of a grid, which is never resharded; see ShardedObject.
struct ManifestObject {
  std::string key;
  Shape grid;
  Shape cell;
  Value value;

  friend bool operator==(const ManifestObject&, const ManifestObject&) = default;
};

}  // namespace troupe::core
