#pragma once

#include <cstddef>

#include "apps/gpt/model/context_attention.hpp"
#include "apps/gpt/model/expert_config.hpp"

namespace troupe::apps::gpt {

/// What a layer of experts is given of a pass.
template <class T>
struct ExpertShape {
  const ExpertConfig& config;
  std::size_t rows = 0;   ///< N
  std::size_t width = 0;  ///< C
  /// Backward adds the gradients of the router's losses. Of ranks that share the layer, whose gradients are
  /// summed, one does.
  bool adds_losses = true;
  std::size_t sequences = 1;  ///< that the rows are of, or parts of
  /// Where a group shares the sequences: each member has rows of its own, and what is decided about rows of a
  /// microbatch together is decided about those of all members.
  const ContextParallel<T>* across = nullptr;
};

}  // namespace troupe::apps::gpt
