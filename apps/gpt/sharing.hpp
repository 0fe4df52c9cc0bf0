#pragma once

#include "apps/gpt/tensor/group.hpp"

namespace troupe::apps::gpt {

/// With whom a model computes; null: alone.
template <class T>
struct Sharing {
  TensorGroup<T>* layers = nullptr;   ///< members keep parts of the same layers
  bool sequence = false;              ///< and their own rows of the residual stream alone
  TensorGroup<T>* context = nullptr;  ///< members keep parts of the same sequences
};

}  // namespace troupe::apps::gpt
