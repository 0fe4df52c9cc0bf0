#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace troupe::apps::gpt {

// C width, E experts, F feed_forward of an expert, or of the shared one.

/// Places in the table of parameters.
struct ExpertWeights {
  std::size_t gate = 0, up = 0;  ///< (F, C) each
  std::size_t down = 0;          ///< (C, F)
};

struct ExpertLayerParameters {
  std::size_t router = 0;              ///< (E, C)
  std::vector<ExpertWeights> experts;  ///< that this rank has
  std::optional<ExpertWeights> shared;
  std::optional<std::size_t> shared_gate;  ///< (1, C)
};

}  // namespace troupe::apps::gpt
