#include "core/boxes/box.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/element_range.hpp"
#include "core/errors.hpp"

namespace troupe::core {

namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;

std::size_t axes_of(const Box& box) {
  return box.offset.size();
}

/// Elements between neighbours along each axis of a row-major tensor.
Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

/// Appends the boxes of [start, end) of the tensor below `axis`; `box` holds the axes before it.
void append_boxes(const Shape& shape, const Shape& strides, std::size_t axis, ElementRange range, Box box,
                  std::vector<Box>& boxes) {
  if (range.size() <= 0) return;
  if (axis == shape.size()) {
    boxes.push_back(std::move(box));
    return;
  }
  const std::int64_t stride = strides[axis];
  auto part = [&](std::int64_t first, std::int64_t count) {
    Box inner = box;
    inner.offset.push_back(first);
    inner.extent.push_back(count);
    return inner;
  };
  const std::int64_t first = range.start / stride;
  const std::int64_t last = range.end / stride;
  const std::int64_t head = range.start % stride;
  const std::int64_t tail = range.end % stride;
  if (first == last) {
    append_boxes(shape, strides, axis + 1, {head, tail}, part(first, 1), boxes);
    return;
  }
  const std::int64_t full = head == 0 ? first : first + 1;
  if (head != 0) append_boxes(shape, strides, axis + 1, {head, stride}, part(first, 1), boxes);
  if (full < last) {
    Box middle = part(full, last - full);
    for (std::size_t inner = axis + 1; inner < shape.size(); ++inner) {
      middle.offset.push_back(0);
      middle.extent.push_back(shape[inner]);
    }
    boxes.push_back(std::move(middle));
  }
  append_boxes(shape, strides, axis + 1, {0, tail}, part(last, 1), boxes);
}

bool overlap(const Box& a, const Box& b) {
  for (std::size_t axis = 0; axis < axes_of(a); ++axis) {
    if (a.offset[axis] >= b.offset[axis] + b.extent[axis]) return false;
    if (b.offset[axis] >= a.offset[axis] + a.extent[axis]) return false;
  }
  return true;
}

/// The axis along which the boxes have the most distinct beginnings.
std::size_t axis_cut_most(std::span<const Box> boxes) {
  std::size_t best = 0;
  std::size_t most = 0;
  const std::size_t axes = boxes.empty() ? 0 : axes_of(boxes.front());
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<std::int64_t> begins;
    begins.reserve(boxes.size());
    for (const Box& box : boxes) begins.push_back(box.offset[axis]);
    std::sort(begins.begin(), begins.end());
    const auto count = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (count > most) {
      most = count;
      best = axis;
    }
  }
  return best;
}

}  // namespace

std::int64_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Result<void> check_shape(const Shape& shape) {
  std::int64_t elements = 1;
  for (std::int64_t extent : shape) {
    if (extent < 0)
      return fail(Errc::invalid_argument, "the shape {} has a negative extent", to_string(shape));
    if (extent != 0 && elements > kMaxElements / extent)
      return fail(Errc::invalid_argument, "the shape {} has more than 2^62 elements", to_string(shape));
    elements *= std::max<std::int64_t>(extent, 1);
  }
  return {};
}

std::string to_string(const Shape& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

bool Box::lies_in(const Shape& shape) const {
  if (offset.size() != shape.size() || extent.size() != shape.size()) return false;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (offset[axis] < 0 || extent[axis] < 0 || offset[axis] > shape[axis]) return false;
    if (extent[axis] > shape[axis] - offset[axis]) return false;
  }
  return true;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  // Also for a box from outside, whose offset and extent may differ in length, and whose end may be no
  // number.
  for (std::size_t axis = 0; axis < std::min(box.offset.size(), box.extent.size()); ++axis) {
    const auto [begin, extent] = std::pair(box.offset[axis], box.extent[axis]);
    std::int64_t end = 0;
    text += axis == 0 ? "" : ", ";
    text += __builtin_add_overflow(begin, extent, &end) ? fmt::format("{}:{}+{}", begin, begin, extent)
                                                        : fmt::format("{}:{}", begin, end);
  }
  return text + "]";
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  CHECK(axes_of(a) == axes_of(b), "boxes of one tensor have the same number of axes");
  Box common{Shape(axes_of(a)), Shape(axes_of(a))};
  for (std::size_t axis = 0; axis < axes_of(a); ++axis) {
    const std::int64_t begin = std::max(a.offset[axis], b.offset[axis]);
    const std::int64_t end = std::min(a.offset[axis] + a.extent[axis], b.offset[axis] + b.extent[axis]);
    if (end <= begin) return std::nullopt;
    common.offset[axis] = begin;
    common.extent[axis] = end - begin;
  }
  return common;
}

std::vector<Box> boxes_of_range(const Shape& shape, ElementRange range) {
  CHECK(range.start >= 0 && range.end <= elements_of(shape), "a range lies in its tensor");
  std::vector<Box> boxes;
  append_boxes(shape, strides_of(shape), 0, range, {}, boxes);
  return boxes;
}

BoxIndex::BoxIndex(std::vector<Box> boxes) : boxes_(std::move(boxes)), axis_(axis_cut_most(boxes_)) {
  entries_.reserve(boxes_.size());
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const Box& box = boxes_[i];
    if (box.is_empty()) continue;
    const bool scalar = axes_of(box) == 0;
    const std::int64_t begin = scalar ? 0 : box.offset[axis_];
    entries_.push_back({begin, scalar ? 1 : begin + box.extent[axis_], i});
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.position) < std::pair(b.begin, b.position);
  });
  std::int64_t latest = 0;
  for (const Entry& entry : entries_) latest_end_.push_back(latest = std::max(latest, entry.end));
}

std::vector<std::size_t> BoxIndex::touching(const Box& box) const {
  std::vector<std::size_t> found;
  if (entries_.empty() || box.is_empty()) return found;
  const bool scalar = axes_of(box) == 0;
  const std::int64_t begin = scalar ? 0 : box.offset[axis_];
  const std::int64_t end = scalar ? 1 : begin + box.extent[axis_];
  // All entries before the first latest end beyond `begin` end too early.
  const auto first = std::upper_bound(latest_end_.begin(), latest_end_.end(), begin);
  for (auto i = static_cast<std::size_t>(first - latest_end_.begin());
       i < entries_.size() && entries_[i].begin < end; ++i) {
    if (entries_[i].end > begin && overlap(boxes_[entries_[i].position], box)) {
      found.push_back(entries_[i].position);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<CopyRun> copy_runs(const Box& source, const Box& target, const Box& region) {
  const std::size_t axes = axes_of(region);
  if (region.is_empty()) return {};
  // Axes from `inner` on are contiguous on both sides: a run covers them together.
  std::size_t inner = axes;
  std::int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= region.extent[inner];
    if (region.extent[inner] != source.extent[inner] || region.extent[inner] != target.extent[inner]) break;
  }
  const Shape from_strides = strides_of(source.extent);
  const Shape to_strides = strides_of(target.extent);
  auto position = [&](const Box& box, const Shape& strides, const Shape& index) {
    std::int64_t at = 0;
    for (std::size_t axis = 0; axis < axes; ++axis) at += (index[axis] - box.offset[axis]) * strides[axis];
    return at;
  };
  std::vector<CopyRun> runs;
  Shape index = region.offset;
  while (true) {
    runs.push_back({position(source, from_strides, index), position(target, to_strides, index), run});
    std::size_t axis = inner;
    while (axis > 0 && ++index[axis - 1] == region.offset[axis - 1] + region.extent[axis - 1]) {
      index[axis - 1] = region.offset[axis - 1];
      --axis;
    }
    if (axis == 0) return runs;
  }
}

}  // namespace troupe::core
