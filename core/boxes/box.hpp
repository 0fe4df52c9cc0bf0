#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

struct ElementRange;  // core/element_range.hpp

/// Extents of a tensor, outermost axis first. Empty: a scalar, which has one element.
using Shape = std::vector<std::int64_t>;
/// The most axes of a tensor that is described from outside: far more than tensors have (PyTorch stops at 64
/// in many places), and the names of objects stay short.
inline constexpr std::size_t kMaxAxes = 64;

/// The number of elements. Extents must not be negative and their product must fit (see check_shape).
std::int64_t elements_of(const Shape& shape);
/// Errc::invalid_argument for a negative extent or more than 2^62 elements.
Result<void> check_shape(const Shape& shape);
/// "(4, 5, 80)"; "()" for a scalar.
std::string to_string(const Shape& shape);

/// A rectangular part of a row-major tensor: axis i covers [offset[i], offset[i] + extent[i]). Offset and
/// extent have the tensor's number of axes. A box with an extent of 0 is empty, which is allowed.
struct Box {
  Shape offset;
  Shape extent;

  /// All of a tensor.
  static Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

  std::int64_t elements() const { return elements_of(extent); }
  bool is_empty() const { return elements() == 0; }
  /// Whether it has as many axes as `shape` and is inside it.
  bool lies_in(const Shape& shape) const;

  friend auto operator<=>(const Box&, const Box&) = default;
};

/// "[0:4, 16:32]".
std::string to_string(const Box& box);

/// The part that two boxes of one tensor have in common; nothing when it is empty.
std::optional<Box> intersection(const Box& a, const Box& b);

/// The elements [range.start, range.end) of a row-major tensor as boxes, at most 2 * axes - 1 of them, in
/// memory order. Each box is contiguous in the tensor.
std::vector<Box> boxes_of_range(const Shape& shape, ElementRange range);

/// Errc::invalid_argument unless the boxes lie in the tensor, do not overlap and cover all of it; empty boxes
/// are skipped. The message starts with "Invalid access pattern" and names two boxes or the missing elements.
/// O(m log m) for m = n * 2^k corners of n boxes that are cut along k axes; more than 10 axes, 2^25 corners
/// or, beyond 5 axes, 2^16 are refused. `shape` must be one that check_shape() accepts.
Result<void> check_exact_cover(const Shape& shape, std::span<const Box> boxes);
Result<void> check_exact_cover(const Shape& shape, std::span<const Box* const> boxes);

/// Finds, among boxes of one tensor, those that overlap a given one. Boxes are sorted along the axis that is
/// cut most, so that a query costs the logarithm of their number plus the number it finds.
class BoxIndex {
 public:
  explicit BoxIndex(std::vector<Box> boxes);

  /// Positions in the constructor's list, in ascending order.
  std::vector<std::size_t> touching(const Box& box) const;
  const Box& at(std::size_t position) const { return boxes_[position]; }
  std::size_t size() const { return boxes_.size(); }

 private:
  struct Entry {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t position = 0;
  };
  std::vector<Box> boxes_;
  std::size_t axis_ = 0;
  std::vector<Entry> entries_;            ///< by begin
  std::vector<std::int64_t> latest_end_;  ///< of the entries up to here
};

/// One contiguous run of a copy between two row-major boxes, in elements from their beginnings.
struct CopyRun {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t elements = 0;

  friend bool operator==(const CopyRun&, const CopyRun&) = default;
};

/// The runs that copy `region` from memory that holds `source` to memory that holds `target`, in ascending
/// order. `region` must be inside both.
std::vector<CopyRun> copy_runs(const Box& source, const Box& target, const Box& region);

}  // namespace troupe::core
