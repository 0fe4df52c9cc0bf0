#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/sharded_tensor.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Rows of a local tensor that are stored as a piece of a separate tensor. Rows are slices along the first
/// local axis.
struct StackedPart {
  std::string suffix;  ///< of the key
  std::int64_t rows = 0;
  std::int64_t piece = 0;   ///< of `pieces` with this many rows each
  std::int64_t pieces = 1;  ///< of the stored tensor
};

/// How a local tensor is stacked: the parts follow each other and take all rows.
using StackingRule = std::function<Result<std::vector<StackedPart>>(const ShardedTensor& tensor)>;

/// The projection of a gated unit holds half of the gate's rows above half of the values' on every tensor
/// rank. Both are stored in one tensor [all gates; all values], or with `own_keys` in two, "<key>_w" and
/// "<key>_v". Neither depends on the number of ranks.
StackingRule swiglu_stacking(bool own_keys);

/// The fused projection of attention: for each group its queries' rows (heads * head_rows), then its key's
/// and its value's. Stored as "<key>_q", "<key>_k" and "<key>_v".
StackingRule qkv_stacking(std::int64_t heads_per_group, std::int64_t head_rows);

/// The stored parts of a regular tensor, in the order of its rows; without a rule the tensor itself, which
/// may be irregular then. Errc::invalid_argument when its rows do not fit the rule.
Result<std::vector<ShardedTensor>> stacked_parts(const ShardedTensor& tensor, const StackingRule& rule);

/// Like from_flat_range() for one tensor, but for a tensor stored as several parts: what a flat range holds
/// of each. Keys are `key_prefix` followed by the part's key.
Result<std::vector<FlatPart>> from_flat_range(std::span<const ShardedTensor> parts, ElementRange range,
                                              std::string_view key_prefix, DType dtype,
                                              const ReplicaId& replica_id);

}  // namespace troupe::core
