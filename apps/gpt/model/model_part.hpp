#pragma once

#include <cstddef>

#include "apps/gpt/model/config.hpp"

namespace troupe::apps::gpt {

/// Consecutive layers, [first, end). The embedding belongs to the first layer, the final norm and the output
/// layer to the last.
struct ModelPart {
  std::size_t first = 0;
  std::size_t end = 0;

  bool has_begin() const { return first == 0; }
  bool has_end(const ModelConfig& config) const { return end == config.layers; }
};

inline ModelPart whole_model(const ModelConfig& config) {
  return {0, config.layers};
}

}  // namespace troupe::apps::gpt
