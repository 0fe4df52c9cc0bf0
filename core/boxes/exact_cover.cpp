#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/errors.hpp"

namespace troupe::core {

namespace {

// How often each element is covered is the sum over the boxes. The mixed difference of one box along all axes
// is +1 or -1 at its corners and 0 elsewhere, and a sum of boxes is determined by its differences. So boxes
// cover a tensor exactly when, corner by corner, their signs add up to those of the whole tensor.

/// A corner in row-major order, with its sign in the lowest bit: wide enough for every tensor, because a
/// product of (extent + 1) is at most 2^64 times that of the extents.
__extension__ using Corner = unsigned __int128;

// The work stays proportional to the text of a manifest, whatever its origin: many boxes are cut along few
// axes.
constexpr std::size_t kMaxCutAxes = 10;
constexpr std::size_t kMaxCorners = std::size_t{1} << 25;
constexpr std::size_t kFewCorners = std::size_t{1} << 16;
constexpr std::size_t kMaxCornersOfMany = 32;

struct CutAxis {
  std::size_t axis = 0;
  Corner stride = 1;
};

/// The axes along which some box ends inside the tensor; the corners of all boxes agree along the others.
std::vector<CutAxis> cut_axes(const Shape& shape, std::span<const Box* const> boxes) {
  std::vector<CutAxis> axes;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const bool is_cut = std::any_of(boxes.begin(), boxes.end(),
                                    [&](const Box* box) { return box->extent[axis] != shape[axis]; });
    if (is_cut) axes.push_back({axis, 1});
  }
  for (std::size_t i = axes.size(); i-- > 1;)
    axes[i - 1].stride = axes[i].stride * static_cast<Corner>(shape[axes[i].axis] + 1);
  return axes;
}

void append_corners(const Box& box, std::span<const CutAxis> axes, bool is_negative,
                    std::vector<Corner>& corners) {
  const std::size_t first = corners.size();
  corners.push_back(is_negative ? 1 : 0);
  for (const auto& [axis, stride] : axes) {
    const std::size_t count = corners.size() - first;
    for (std::size_t i = 0; i < count; ++i) {
      const Corner begin = corners[first + i] + 2 * stride * static_cast<Corner>(box.offset[axis]);
      const Corner end = begin + 2 * stride * static_cast<Corner>(box.extent[axis]);
      corners[first + i] = begin;
      corners.push_back(end ^ 1);
    }
  }
}

/// The first element that is not covered once. All elements before it are, so the signs at its corner add up
/// to the number of times it is covered beyond once.
struct Fault {
  Corner corner = 0;
  std::int64_t excess = 0;
};

Fault first_fault(std::vector<Corner> corners) {
  std::sort(corners.begin(), corners.end());
  for (std::size_t i = 0; i < corners.size();) {
    const Corner corner = corners[i] >> 1;
    std::int64_t excess = 0;
    for (; i < corners.size() && corners[i] >> 1 == corner; ++i) excess += (corners[i] & 1) != 0 ? -1 : 1;
    if (excess != 0) return {corner, excess};
  }
  return {};
}

Shape element_at(Corner corner, const Shape& shape, std::span<const CutAxis> axes) {
  Shape element(shape.size(), 0);
  for (const auto& [axis, stride] : axes) {
    element[axis] = static_cast<std::int64_t>(corner / stride);
    corner %= stride;
  }
  return element;
}

bool contains(const Box& box, const Shape& element) {
  for (std::size_t axis = 0; axis < element.size(); ++axis) {
    const auto within = element[axis] - box.offset[axis];
    if (within < 0 || within >= box.extent[axis]) return false;
  }
  return true;
}

Result<void> overlap_at(const Shape& element, const Shape& shape, std::span<const Box* const> boxes) {
  const auto has_it = [&](const Box* box) { return contains(*box, element); };
  const auto one = std::find_if(boxes.begin(), boxes.end(), has_it);
  const auto other = std::find_if(one + 1, boxes.end(), has_it);
  return fail(Errc::invalid_argument, "Invalid access pattern: {} and {} of a tensor of shape {} overlap",
              to_string(**one), to_string(**other), to_string(shape));
}

}  // namespace

Result<void> check_exact_cover(const Shape& shape, std::span<const Box> boxes) {
  std::vector<const Box*> each;
  each.reserve(boxes.size());
  for (const Box& box : boxes) each.push_back(&box);
  return check_exact_cover(shape, each);
}

Result<void> check_exact_cover(const Shape& shape, std::span<const Box* const> boxes) {
  std::vector<const Box*> filled;
  filled.reserve(boxes.size());
  const auto wanted = static_cast<std::uint64_t>(elements_of(shape));
  std::uint64_t elements = 0;
  for (const Box* box : boxes) {
    if (!box->lies_in(shape)) {
      return fail(Errc::invalid_argument, "Invalid access pattern: {} does not lie in a tensor of shape {}",
                  to_string(*box), to_string(shape));
    }
    if (box->is_empty()) continue;
    // Beyond `wanted` the sum only has to stay there, as it could overflow otherwise.
    elements = std::min(elements + static_cast<std::uint64_t>(box->elements()), wanted + 1);
    filled.push_back(box);
  }
  if (wanted == 0) return {};
  const auto axes = cut_axes(shape, filled);
  const std::size_t corners_of_one = std::size_t{1} << std::min(axes.size(), kMaxCutAxes);
  const bool are_few = filled.size() + 1 <= kFewCorners / corners_of_one;
  if (axes.size() > kMaxCutAxes || filled.size() + 1 > kMaxCorners / corners_of_one ||
      (corners_of_one > kMaxCornersOfMany && !are_few)) {
    return fail(
        Errc::invalid_argument,
        "a tensor of shape {} is cut along {} axes into {} boxes, which have too many corners to check; cut "
        "it along fewer axes",
        to_string(shape), axes.size(), filled.size());
  }
  std::vector<Corner> corners;
  corners.reserve((filled.size() + 1) << axes.size());
  for (const Box* box : filled) append_corners(*box, axes, false, corners);
  append_corners(Box::whole(shape), axes, true, corners);
  const Fault fault = first_fault(std::move(corners));
  if (fault.excess == 0) return {};
  const Shape element = element_at(fault.corner, shape, axes);
  if (fault.excess > 0) return overlap_at(element, shape, filled);
  if (elements < wanted) {
    return fail(Errc::invalid_argument,
                "Invalid access pattern: {} of {} elements of a tensor of shape {} are covered by {} boxes",
                elements, wanted, to_string(shape), filled.size());
  }
  return fail(Errc::invalid_argument,
              "Invalid access pattern: no box has the element {} of a tensor of shape {}", to_string(element),
              to_string(shape));
}

}  // namespace troupe::core
