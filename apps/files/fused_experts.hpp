#pragma once

#include <string>

#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// How experts are called that transformers 5 and later keep in one tensor per layer, "experts.gate_up_proj"
/// of shape (E, 2 F, H) and "experts.down_proj" of (E, H, F), while files of models have one per expert.
enum class ExpertNames : std::uint8_t {
  automatic,  ///< as the model's other tensors suggest: Mixtral's where there are neither norms of queries
              ///< nor a shared expert
  mixtral,    ///< block_sparse_moe.experts.0.w1.weight, w3, w2
  qwen,       ///< mlp.experts.0.gate_proj.weight, up_proj, down_proj
  fused,      ///< they stay one tensor
};

/// Takes such tensors apart, and what an optimizer keeps of them, with a note. No byte is moved.
core::Result<void> split_fused_experts(Source& source, ExpertNames names);

}  // namespace troupe::apps
