#pragma once

#include <cstddef>

#include "apps/gpt/model/group.hpp"

namespace troupe::apps::gpt {

/// The groups that a model computes with; null: alone.
template <class T>
struct Sharing {
  TensorGroup<T>* layers = nullptr;   ///< members keep parts of the same layers
  bool sequence = false;              ///< and only their own rows of the residual stream
  TensorGroup<T>* context = nullptr;  ///< members keep parts of the same sequences
  std::size_t slices = 1;             ///< of each layer, that this member computes
};

}  // namespace troupe::apps::gpt
