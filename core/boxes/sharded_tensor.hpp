#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Which copy of a part this is. The models use (pipeline, tensor, data), but any number of components works.
using ReplicaId = std::vector<std::int32_t>;

/// All components are 0: of equal parts, this is the one that is written.
bool is_main_replica(const ReplicaId& replica);

/// Along one axis of the global tensor: piece `offset` of `fragments` equal ones.
struct RankOffset {
  std::int64_t axis = 0;  ///< counts the prepended axes
  std::int64_t offset = 0;
  std::int64_t fragments = 1;
};

/// One rank's part of a named global tensor, without the data. Prepended axes (layer, expert) exist only
/// globally: the part has extent 1 along them, and its own shape does not mention them.
struct ShardedTensor {
  /// The same on all ranks that hold a part, wherever it stands in their state.
  std::string key;
  DType dtype = DType::f32;
  Shape local_shape;
  Shape global_shape;   ///< with the prepended axes
  Shape global_offset;  ///< as many axes as global_shape
  /// Equal pieces per global axis: the parts form a grid. Without it the part is any box, possibly empty.
  std::optional<Shape> axis_fragmentations;
  ReplicaId replica_id{0};
  std::int64_t prepend_axis_num = 0;
  /// A load may find another global shape: the common part is read, the rest is zero.
  bool allow_shape_mismatch = false;

  struct Options {
    std::int64_t prepend_axis_num = 0;
    ReplicaId replica_id{0};
    bool allow_shape_mismatch = false;
  };
  /// A regular part: the global extent of a named axis is fragments * local extent (1 when it is prepended),
  /// that of all others the local extent. Errc::invalid_argument names an offset that is not possible.
  static Result<ShardedTensor> from_rank_offsets(std::string key, DType dtype, Shape local_shape,
                                                 std::span<const RankOffset> offsets, Options options);
  static Result<ShardedTensor> from_rank_offsets(std::string key, DType dtype, Shape local_shape,
                                                 std::span<const RankOffset> offsets = {});

  /// Errc::invalid_argument says which of the fields contradict each other.
  Result<void> check() const;

  bool is_regular() const { return axis_fragmentations.has_value(); }
  bool is_main_replica() const { return core::is_main_replica(replica_id); }
  /// The place in the global tensor.
  Box box() const;
  /// A regular part's place in the grid that axis_fragmentations spans.
  Shape grid_cell() const;
  std::int64_t bytes() const;

  /// The part [start, start + length) along a local axis; the global tensor shrinks in the same proportion.
  /// Errc::invalid_argument for an irregular part and a range outside of the local extent.
  Result<ShardedTensor> narrow(std::int64_t axis, std::int64_t start, std::int64_t length) const;

  friend bool operator==(const ShardedTensor&, const ShardedTensor&) = default;
};

/// "'decoder.weight', f32 [0:4, 16:32] of (8, 32), replica (0, 1)".
std::string to_string(const ShardedTensor& tensor);

/// A box of a tensor, and where it begins in the flat memory that it is part of.
struct FlatPart {
  ShardedTensor tensor;
  std::int64_t start = 0;  ///< elements from the beginning of the range
};

/// The parts of `parameter` held by a rank that has elements [range.start, range.end) of the flattened
/// parameter, as a sharded optimizer does of its states: at most 2 * axes - 1 irregular parts of the
/// parameter's global tensor, each contiguous in the flat memory. `key` and `dtype` are the state's,
/// `replica_id` is the flat range's own. Errc::invalid_argument for a range outside of the parameter.
Result<std::vector<FlatPart>> from_flat_range(const ShardedTensor& parameter, ElementRange range,
                                              std::string_view key, DType dtype, const ReplicaId& replica_id);

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

/// A value that is not a tensor, at a cell of a grid: never resharded, only asked for under the same name.
struct ShardedObject {
  std::string key;
  Shape global_shape{1};   ///< the grid
  Shape global_offset{0};  ///< the cell
  ReplicaId replica_id{0};

  /// Errc::invalid_argument for a cell outside of the grid, and for a key with a '/'.
  Result<void> check() const;
  bool is_main_replica() const { return core::is_main_replica(replica_id); }
  /// "<key>/shard_<cell>_<grid>", for example "rng/shard_0.3_1.8".
  std::string unique_key() const;
  /// The inverse. Names of old checkpoints have no grid; its extents are then -1. Errc::corrupt for text that
  /// is not such a name.
  static Result<ShardedObject> from_unique_key(std::string_view name);

  friend bool operator==(const ShardedObject&, const ShardedObject&) = default;
};

}  // namespace troupe::core
