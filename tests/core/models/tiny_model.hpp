#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/models/weight_map.hpp"

namespace troupe::core {

/// Sizes that a published configuration shrinks to.
struct Tiny {
  std::int64_t layers = 4, hidden = 8, heads = 4, groups = 2, head_dim = 2, ffn = 8, experts = 4, vocab = 10;
  MeshSizes mesh;
  int vpp = 0;
};

/// A model of the published one's architecture with these sizes.
ModelConfig tiny(const std::string& published_model, const Tiny& sizes);

/// Tensors as numbers, by file and name.
using Tensors = std::map<std::pair<std::string, std::string>, std::vector<std::int64_t>>;

/// Every element of every tensor is another number, from 1.
Tensors numbered(const std::vector<PlannedTensor>& tensors);
/// What a plan makes of them. Elements that nothing covers are 0.
Tensors execute(const WeightPlan& plan, const Tensors& inputs);

}  // namespace troupe::core
