#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A box of a stored tensor to be loaded into row-major memory of `dtype`.
struct LoadTarget {
  std::string key;
  DType dtype = DType::f32;
  Shape shape;  ///< of the global tensor as the reader knows it
  Box box;
  /// Another stored shape with as many axes is accepted too: the common part is read, the rest is zero.
  bool allow_shape_mismatch = false;
};

/// Part of a shard that is copied to a target.
struct LoadCopy {
  std::size_t target = 0;  ///< index in the targets
  Box region;              ///< of the global tensor; inside the shard's box and the target's
};

/// A shard that is read, and the targets that take parts of it.
struct LoadRead {
  const ManifestTensor* tensor = nullptr;
  const ManifestShard* shard = nullptr;
  std::vector<LoadCopy> copies;
};

struct LoadPlan {
  std::vector<LoadRead> reads;    ///< in the order of files and bytes; each shard once
  std::vector<std::size_t> zero;  ///< targets that the shards do not fill completely: clear them first
  std::uint64_t bytes = 0;        ///< of all shards that are read
};

/// Finds the shards that hold the targets. `manifest` must outlive the plan. Errc::not_found names a key that
/// the checkpoint lacks, Errc::mismatch ("Global shape mismatch") a tensor of another shape.
Result<LoadPlan> plan_load(const Manifest& manifest, std::span<const LoadTarget> targets);

}  // namespace troupe::core
