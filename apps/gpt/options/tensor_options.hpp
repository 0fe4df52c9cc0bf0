#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// How layers are shared; TrainingOptions::tensor_parallel is the number of ranks that share them, and
/// context_parallel the number that share each sequence.
struct TensorOptions {
  bool sequence_parallel = false;
  /// Each layer is computed in this many slices, whose results are added in one tree: the same bits on any
  /// number of tensor-parallel ranks that divides it. 0: as many as ranks.
  int slices = 0;
};

inline int slices_of(const core::TrainingOptions& training, const TensorOptions& tensor) {
  return tensor.slices == 0 ? training.tensor_parallel : tensor.slices;
}

/// Errc::invalid_argument for options that exclude each other.
core::Result<void> check_tensor_options(const core::TrainingOptions& training, const TensorOptions& tensor,
                                        bool is_local);

/// Rows of the report's table of settings; empty without tensor or context parallelism.
std::vector<std::pair<std::string, std::string>> describe(const core::TrainingOptions& training,
                                                          const TensorOptions& tensor);

}  // namespace troupe::apps::gpt
