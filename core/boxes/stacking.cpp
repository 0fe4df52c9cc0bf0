#include "core/boxes/sharded_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/element_range.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

std::size_t row_axis(const ShardedTensor& tensor) {
  return static_cast<std::size_t>(tensor.prepend_axis_num);
}

Result<void> check_stackable(const ShardedTensor& tensor) {
  TRY(tensor.check());
  if (!tensor.is_regular() || tensor.local_shape.empty()) {
    return fail(Errc::invalid_argument,
                "{} cannot be cut into stacked parts; it must be regular and have rows", to_string(tensor));
  }
  return {};
}

tl::unexpected<Error> wrong_rows(const ShardedTensor& tensor, std::string_view expected) {
  return fail(Errc::invalid_argument, "{} has {} rows here, expected {}", to_string(tensor),
              tensor.local_shape.front(), expected);
}

}  // namespace

StackingRule swiglu_stacking(bool own_keys) {
  return [own_keys](const ShardedTensor& tensor) -> Result<std::vector<StackedPart>> {
    const std::int64_t rows = tensor.local_shape.front();
    if (rows == 0 || rows % 2 != 0) return wrong_rows(tensor, "an even number: gates, then values");
    const std::int64_t piece = tensor.grid_cell()[row_axis(tensor)];
    const std::int64_t pieces = (*tensor.axis_fragmentations)[row_axis(tensor)];
    if (own_keys)
      return std::vector<StackedPart>{{"_w", rows / 2, piece, pieces}, {"_v", rows / 2, piece, pieces}};
    return std::vector<StackedPart>{{"", rows / 2, piece, 2 * pieces},
                                    {"", rows / 2, piece + pieces, 2 * pieces}};
  };
}

StackingRule qkv_stacking(std::int64_t heads_per_group, std::int64_t head_rows) {
  return [=](const ShardedTensor& tensor) -> Result<std::vector<StackedPart>> {
    std::int64_t group_rows = 0;
    if (heads_per_group < 1 || head_rows < 1 ||
        __builtin_mul_overflow(heads_per_group + 2, head_rows, &group_rows) ||
        tensor.local_shape.front() % group_rows != 0) {
      return wrong_rows(tensor,
                        fmt::format("a multiple of ({} + 2) heads of {} rows", heads_per_group, head_rows));
    }
    const std::int64_t groups = tensor.local_shape.front() / group_rows;
    const std::int64_t first = tensor.grid_cell()[row_axis(tensor)] * groups;
    const std::int64_t all = (*tensor.axis_fragmentations)[row_axis(tensor)] * groups;
    std::vector<StackedPart> parts;
    for (std::int64_t group = first; group < first + groups; ++group) {
      parts.push_back({"_q", heads_per_group * head_rows, group, all});
      parts.push_back({"_k", head_rows, group, all});
      parts.push_back({"_v", head_rows, group, all});
    }
    return parts;
  };
}

Result<std::vector<ShardedTensor>> stacked_parts(const ShardedTensor& tensor, const StackingRule& rule) {
  if (!rule) {
    TRY(tensor.check());
    return std::vector<ShardedTensor>{tensor};
  }
  TRY(check_stackable(tensor));
  const std::size_t axis = row_axis(tensor);
  std::vector<ShardedTensor> parts;
  std::int64_t rows = 0;
  const auto places = TRY(rule(tensor));
  for (const StackedPart& place : places) {
    ShardedTensor part = tensor;
    part.key += place.suffix;
    part.local_shape.front() = place.rows;
    part.global_shape[axis] = place.rows * place.pieces;
    part.global_offset[axis] = place.rows * place.piece;
    (*part.axis_fragmentations)[axis] = place.pieces;
    TRY(part.check());
    rows += place.rows;
    parts.push_back(std::move(part));
  }
  if (rows != tensor.local_shape.front()) return wrong_rows(tensor, fmt::format("{} of its parts", rows));
  return parts;
}

Result<std::vector<FlatPart>> from_flat_range(std::span<const ShardedTensor> parts, ElementRange range,
                                              std::string_view key_prefix, DType dtype,
                                              const ReplicaId& replica_id) {
  std::vector<FlatPart> result;
  std::int64_t begin = 0;
  for (const ShardedTensor& part : parts) {
    const std::int64_t elements = elements_of(part.local_shape);
    const ElementRange own{std::clamp(range.start - begin, std::int64_t{0}, elements),
                           std::clamp(range.end - begin, std::int64_t{0}, elements)};
    const std::string key = std::string(key_prefix) + part.key;
    auto boxes = TRY(from_flat_range(part, own, key, dtype, replica_id));
    for (FlatPart& box : boxes) {
      box.start += begin + own.start - range.start;
      result.push_back(std::move(box));
    }
    begin += elements;
  }
  if (range.start < 0 || range.end < range.start || range.end > begin) {
    return fail(Errc::invalid_argument, "the stacked parts have {} elements, found the range [{}, {})", begin,
                range.start, range.end);
  }
  return result;
}

}  // namespace troupe::core
