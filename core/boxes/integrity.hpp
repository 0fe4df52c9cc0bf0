#pragma once

#include <span>
#include <vector>

#include "core/boxes/sharded_tensor.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// What one rank holds of the global tensors and objects.
struct RankShards {
  std::vector<ShardedTensor> tensors;
  std::vector<ShardedObject> objects;
};

/// Whether the parts of all ranks make up complete tensors and objects. A pure function of its input: the
/// rank that gathered it sends the verdict to all others, so that all of them stop or continue together.
///
/// For each key, dtype, global shape and regularity must be the same everywhere, and for regular parts the
/// local shape too (Errc::mismatch names two ranks). The main replicas must cover every cell of the grid, or
/// for irregular parts every element, exactly once ("Invalid access pattern"), and every cell of an object's
/// grid must have one main replica ("Duplicate ShardedObject keys", "... ShardedObject are missing").
Result<void> check_integrity(std::span<const RankShards> ranks);

}  // namespace troupe::core
