#pragma once

#include <cstdint>
#include <vector>

#include "core/layout/buffer_layout.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A flat buffer whose even shards cut tensors only between rows. A row is everything but the first dimension
/// (one element for vectors).
struct RowLayout {
  std::int64_t elements = 0;
  std::vector<std::int64_t> offsets;  ///< of the tensors, in elements
  std::vector<std::vector<std::int64_t>> shapes;
  int shards = 1;

  friend bool operator==(const RowLayout&, const RowLayout&) = default;
};

/// Rows are placed without padding where remainders of two tensors, or small tensors, fill the gaps left by
/// alignment. The rules are those of Megatron-Core's second FSDP.
Result<RowLayout> row_aligned_layout(const std::vector<std::vector<std::int64_t>>& shapes, int shards);

/// The rows [start, end) of a tensor that a shard holds; start = end when none.
ElementRange local_rows(const RowLayout& layout, int tensor, int shard);

}  // namespace troupe::core
