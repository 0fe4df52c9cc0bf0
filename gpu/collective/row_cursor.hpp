#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/dtype.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// The positions of the bytes in a buffer that an all_to_all moves, in its order: consecutive, or row by row
/// from a list. The operation must be prepared and outlive the cursor.
template <class Byte>
class RowCursor {
 public:
  /// Starts `at` bytes after the first byte moved.
  RowCursor(Byte* data, const std::optional<std::vector<std::int64_t>>& rows, std::size_t row_bytes,
            std::size_t at)
      : data_(data), rows_(rows ? rows->data() : nullptr), row_bytes_(row_bytes), at_(at) {}

  /// The next bytes, of which run() are contiguous.
  Byte* data() const {
    if (rows_ == nullptr) return data_ + at_;
    return data_ + static_cast<std::size_t>(rows_[at_ / row_bytes_]) * row_bytes_ + at_ % row_bytes_;
  }
  std::size_t run() const {
    return rows_ == nullptr ? std::numeric_limits<std::size_t>::max() : row_bytes_ - at_ % row_bytes_;
  }
  void advance(std::size_t bytes) { at_ += bytes; }

 private:
  Byte* data_;
  const std::int64_t* rows_;
  std::size_t row_bytes_;
  std::size_t at_;
};

using InputCursor = RowCursor<const std::byte>;
using OutputCursor = RowCursor<std::byte>;

inline InputCursor input_from(const Operation& operation, std::size_t at) {
  return {operation.input.data, operation.rows.input,
          operation.rows.elements * core::size_of(operation.dtype), at};
}
inline OutputCursor output_from(const Operation& operation, std::size_t at) {
  return {operation.output.data, operation.rows.output,
          operation.rows.elements * core::size_of(operation.dtype), at};
}
/// Contiguous memory.
inline InputCursor piece(const std::byte* data) {
  return {data, std::nullopt, 0, 0};
}
inline OutputCursor piece(std::byte* data) {
  return {data, std::nullopt, 0, 0};
}

inline void copy_rows(InputCursor from, OutputCursor to, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t run = std::min({bytes, from.run(), to.run()});
    std::memcpy(to.data(), from.data(), run);
    from.advance(run);
    to.advance(run);
    bytes -= run;
  }
}

}  // namespace troupe::gpu
