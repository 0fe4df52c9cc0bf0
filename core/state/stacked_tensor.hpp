#pragma once

#include "core/boxes/stacking.hpp"
#include "core/state/state_dict.hpp"

namespace troupe::core {

/// Stores the tensor as its parts, each with its place in the same memory. Merging copies nothing: the parts
/// are loaded in place.
TensorFactory stacked_factory(TensorLeaf source, const StackingRule& rule);

}  // namespace troupe::core
