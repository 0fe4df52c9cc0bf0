#include "core/boxes/sharded_tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/element_range.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

std::size_t position(std::int64_t axis) {
  return static_cast<std::size_t>(axis);
}

Result<void> check_rank_offset(const ShardedTensor& tensor, const RankOffset& part) {
  const auto [axis, offset, fragments] = part;
  if (axis < 0 || axis >= std::ssize(tensor.global_shape)) {
    return fail(Errc::invalid_argument, "{} has {} axes, found an offset for axis {}", to_string(tensor),
                tensor.global_shape.size(), axis);
  }
  if (fragments < 1 || offset < 0 || offset >= fragments) {
    return fail(Errc::invalid_argument, "{} cannot have piece {} of {} pieces along axis {}",
                to_string(tensor), offset, fragments, axis);
  }
  std::int64_t extent = 0;
  if (__builtin_mul_overflow(tensor.global_shape[position(axis)], fragments, &extent)) {
    return fail(Errc::invalid_argument, "{} in {} pieces along axis {} has more than 2^62 elements",
                to_string(tensor), fragments, axis);
  }
  return {};
}

Result<void> check_grid(const ShardedTensor& tensor, const Shape& fragments) {
  if (fragments.size() != tensor.global_shape.size()) {
    return fail(Errc::invalid_argument, "{} has {} axes, but fragmentations for {}", to_string(tensor),
                tensor.global_shape.size(), fragments.size());
  }
  TRY(check_shape(fragments));
  const Box box = tensor.box();
  for (std::size_t axis = 0; axis < fragments.size(); ++axis) {
    const std::int64_t extent = box.extent[axis];
    std::int64_t total = 0;
    if (fragments[axis] < 1 || __builtin_mul_overflow(extent, fragments[axis], &total) ||
        total != tensor.global_shape[axis]) {
      return fail(Errc::invalid_argument, "{}: {} pieces of {} elements do not make up axis {}",
                  to_string(tensor), fragments[axis], extent, axis);
    }
    if (extent > 0 && box.offset[axis] % extent != 0) {
      return fail(Errc::invalid_argument,
                  "{}: the offset along axis {} is not a multiple of the local extent {}; leave the "
                  "fragmentations out for irregular parts",
                  to_string(tensor), axis, extent);
    }
  }
  return {};
}

std::string joined(const Shape& numbers) {
  return fmt::format("{}", fmt::join(numbers, "."));
}

/// "0.3" as (0, 3), "" as (); empty for text that `joined` does not produce.
std::optional<Shape> split_numbers(std::string_view text) {
  Shape numbers;
  const char* const end = text.data() + text.size();
  const char* at = text.data();
  while (at != end) {
    std::int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || numbers.size() == kMaxAxes) return std::nullopt;
    numbers.push_back(number);
    at = next == end ? end : next + 1;
  }
  if (joined(numbers) != text) return std::nullopt;
  return numbers;
}

}  // namespace

bool is_main_replica(const ReplicaId& replica) {
  return std::all_of(replica.begin(), replica.end(), [](std::int32_t part) { return part == 0; });
}

Result<ShardedTensor> ShardedTensor::from_rank_offsets(std::string key, DType dtype, Shape local_shape,
                                                       std::span<const RankOffset> offsets) {
  return from_rank_offsets(std::move(key), dtype, std::move(local_shape), offsets, Options{});
}

Result<ShardedTensor> ShardedTensor::from_rank_offsets(std::string key, DType dtype, Shape local_shape,
                                                       std::span<const RankOffset> offsets, Options options) {
  if (options.prepend_axis_num < 0 || options.prepend_axis_num > static_cast<std::int64_t>(kMaxAxes)) {
    return fail(Errc::invalid_argument, "'{}' has {} prepended axes, expected 0 to {}", key,
                options.prepend_axis_num, kMaxAxes);
  }
  ShardedTensor tensor{.key = std::move(key),
                       .dtype = dtype,
                       .local_shape = std::move(local_shape),
                       .global_shape = Shape(position(options.prepend_axis_num), 1),
                       .replica_id = std::move(options.replica_id),
                       .prepend_axis_num = options.prepend_axis_num,
                       .allow_shape_mismatch = options.allow_shape_mismatch};
  tensor.global_shape.insert(tensor.global_shape.end(), tensor.local_shape.begin(), tensor.local_shape.end());
  tensor.global_offset.assign(tensor.global_shape.size(), 0);
  tensor.axis_fragmentations = Shape(tensor.global_shape.size(), 1);
  TRY(tensor.check());
  if (offsets.empty()) return tensor;
  const Shape extents = tensor.global_shape;
  for (const RankOffset& part : offsets) {
    TRY(check_rank_offset(tensor, part));
    const std::size_t axis = position(part.axis);
    tensor.global_shape[axis] = extents[axis] * part.fragments;
    tensor.global_offset[axis] = extents[axis] * part.offset;
    (*tensor.axis_fragmentations)[axis] = part.fragments;
  }
  TRY(tensor.check());
  return tensor;
}

Result<void> ShardedTensor::check() const {
  if (key.empty()) return fail(Errc::invalid_argument, "a sharded tensor has an empty key; name it");
  TRY(check_shape(local_shape));
  TRY(check_shape(global_shape));
  if (global_shape.size() > kMaxAxes || prepend_axis_num < 0 || global_offset.size() != global_shape.size() ||
      local_shape.size() + position(prepend_axis_num) != global_shape.size()) {
    return fail(Errc::invalid_argument,
                "'{}': a local shape {} below {} prepended axes, a global shape {} and an offset {} do not "
                "have the same number of axes (at most {})",
                key, to_string(local_shape), prepend_axis_num, to_string(global_shape),
                to_string(global_offset), kMaxAxes);
  }
  if (!box().lies_in(global_shape)) {
    return fail(Errc::invalid_argument, "{} does not lie in its global tensor", to_string(*this));
  }
  return axis_fragmentations ? check_grid(*this, *axis_fragmentations) : Result<void>();
}

Box ShardedTensor::box() const {
  Box box{global_offset, Shape(position(prepend_axis_num), 1)};
  box.extent.insert(box.extent.end(), local_shape.begin(), local_shape.end());
  return box;
}

Shape ShardedTensor::grid_cell() const {
  CHECK(is_regular(), "only a regular part has a place in a grid");
  Box cell = box();
  for (std::size_t axis = 0; axis < cell.offset.size(); ++axis) {
    if (cell.extent[axis] > 0) cell.offset[axis] /= cell.extent[axis];
  }
  return cell.offset;
}

std::int64_t ShardedTensor::bytes() const {
  return elements_of(local_shape) * static_cast<std::int64_t>(size_of(dtype));
}

Result<ShardedTensor> ShardedTensor::narrow(std::int64_t axis, std::int64_t start,
                                            std::int64_t length) const {
  TRY(check());
  if (!is_regular()) {
    return fail(Errc::invalid_argument, "{} is irregular; only regular parts can be narrowed",
                to_string(*this));
  }
  if (axis < 0 || axis >= std::ssize(local_shape) || start < 0 || length < 1 ||
      length > local_shape[position(axis)] || start > local_shape[position(axis)] - length) {
    return fail(Errc::invalid_argument, "{} has no elements [{}, {} + {}) along local axis {}",
                to_string(*this), start, start, length, axis);
  }
  ShardedTensor part = *this;
  const std::int64_t extent = local_shape[position(axis)];
  const std::size_t global_axis = position(axis + prepend_axis_num);
  part.local_shape[position(axis)] = length;
  part.global_shape[global_axis] = global_shape[global_axis] / extent * length;
  part.global_offset[global_axis] = global_offset[global_axis] / extent * length;
  return part;
}

std::string to_string(const ShardedTensor& tensor) {
  return fmt::format("'{}', {} {} of {}, replica ({})", tensor.key, name_of(tensor.dtype),
                     to_string(tensor.box()), to_string(tensor.global_shape),
                     fmt::join(tensor.replica_id, ", "));
}

Result<std::vector<FlatPart>> from_flat_range(const ShardedTensor& parameter, ElementRange range,
                                              std::string_view key, DType dtype,
                                              const ReplicaId& replica_id) {
  TRY(parameter.check());
  const std::int64_t elements = elements_of(parameter.local_shape);
  if (range.start < 0 || range.end < range.start || range.end > elements) {
    return fail(Errc::invalid_argument, "{} has {} elements here, found the range [{}, {})",
                to_string(parameter), elements, range.start, range.end);
  }
  std::vector<FlatPart> parts;
  std::int64_t start = 0;
  for (Box& box : boxes_of_range(parameter.local_shape, range)) {
    FlatPart part{parameter, start};
    start += box.elements();
    part.tensor.key = key;
    part.tensor.dtype = dtype;
    part.tensor.axis_fragmentations.reset();
    part.tensor.replica_id = replica_id;
    for (std::size_t axis = 0; axis < box.offset.size(); ++axis) {
      part.tensor.global_offset[axis + position(parameter.prepend_axis_num)] += box.offset[axis];
    }
    part.tensor.local_shape = std::move(box.extent);
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<void> ShardedObject::check() const {
  if (key.empty() || key.find('/') != std::string::npos) {
    return fail(Errc::invalid_argument, "a sharded object is called '{}', expected a name without '/'", key);
  }
  TRY(check_shape(global_shape));
  const Box cell{global_offset, Shape(global_offset.size(), 1)};
  if (global_shape.size() > kMaxAxes || !cell.lies_in(global_shape)) {
    return fail(Errc::invalid_argument,
                "the object '{}' is at {} of a grid {}, which does not have that cell", key,
                to_string(global_offset), to_string(global_shape));
  }
  return {};
}

std::string ShardedObject::unique_key() const {
  return fmt::format("{}/shard_{}_{}", key, joined(global_offset), joined(global_shape));
}

Result<ShardedObject> ShardedObject::from_unique_key(std::string_view name) {
  constexpr std::string_view kShard = "shard_";
  const auto refuse = [&] {
    return fail(Errc::corrupt, "'{}' does not name an object, expected \"<key>/shard_<cell>_<grid>\"", name);
  };
  const std::size_t slash = name.find('/');
  if (slash == 0 || slash == std::string_view::npos) return refuse();
  std::string_view place = name.substr(slash + 1);
  if (!place.starts_with(kShard)) return refuse();
  place.remove_prefix(kShard.size());

  const std::size_t border = place.find('_');
  const auto cell = split_numbers(place.substr(0, border));
  if (!cell) return refuse();
  ShardedObject object{.key = std::string(name.substr(0, slash)),
                       .global_shape = Shape(cell->size(), -1),
                       .global_offset = *cell};
  if (border == std::string_view::npos) {
    if (cell->empty() || std::any_of(cell->begin(), cell->end(), [](auto at) { return at < 0; })) {
      return refuse();
    }
    return object;
  }
  const auto grid = split_numbers(place.substr(border + 1));
  if (!grid) return refuse();
  object.global_shape = *grid;
  if (!object.check()) return refuse();
  return object;
}

}  // namespace troupe::core
