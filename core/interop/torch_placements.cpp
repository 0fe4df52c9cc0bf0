#include "core/interop/torch_placements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/element_range.hpp"

namespace troupe::core {
namespace {

/// Attributes are searched among at most this many.
constexpr std::size_t kMostFields = 64;
constexpr std::int64_t kMostRanks = 1 << 20;
/// Ranges into which strided placements cut an axis, and boxes of a part.
constexpr std::size_t kMostRuns = 1024;

std::string_view placement_name(const PickleNode& node) {
  const auto callable = node.callable();
  return callable && callable->kind() == PickleKind::global ? callable->name() : std::string_view();
}

std::optional<std::int64_t> number_of(const PickleNode& object, std::string_view name, std::size_t argument) {
  const auto state = object.state();
  auto found = state ? state_field(*state, name) : std::nullopt;
  const auto arguments = object.arguments();
  if (!found && arguments && arguments->kind() == PickleKind::tuple && argument < arguments->size())
    found = arguments->item(argument);
  return found ? found->as_integer() : std::nullopt;
}

/// The integers of a small tensor.
std::optional<std::vector<std::int64_t>> integers_of(const TorchArchive& archive, const PickleNode& node,
                                                     Shape* shape) {
  const auto tensor = torch_tensor(archive, node);
  if (!tensor || !tensor->strides.empty()) return std::nullopt;
  const auto width = size_of(tensor->dtype);
  if ((tensor->dtype != DType::i32 && tensor->dtype != DType::i64) ||
      tensor->bytes / width > static_cast<std::uint64_t>(kMostRanks))
    return std::nullopt;
  const auto bytes = archive.files.bytes().subspan(tensor->offset, tensor->bytes);
  std::vector<std::int64_t> numbers(bytes.size() / width);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::int32_t narrow = 0;
    void* into = width == sizeof narrow ? static_cast<void*>(&narrow) : &numbers[i];
    std::memcpy(into, bytes.data() + i * width, width);
    if (width == sizeof narrow) numbers[i] = narrow;
  }
  *shape = tensor->shape;
  return numbers;
}

/// A mesh as a tensor of its ranks.
std::optional<std::vector<DimensionPlace>> places_in_tensor(const std::vector<std::int64_t>& ranks,
                                                            const Shape& shape, std::int64_t rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return std::nullopt;
  auto position = static_cast<std::int64_t>(found - ranks.begin());
  std::vector<DimensionPlace> places(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    places[axis] = {position % shape[axis], shape[axis]};
    position /= shape[axis];
  }
  return places;
}

/// One extent and one stride, as one dimension of a mesh has unless it stands for several.
std::optional<std::int64_t> only_number(const PickleNode& object, std::string_view name) {
  const auto state = object.state();
  auto found = state ? state_field(*state, name) : std::nullopt;
  if (found && found->kind() == PickleKind::tuple && found->size() == 1) found = found->item(0);
  return found ? found->as_integer() : std::nullopt;
}

/// A mesh as strides over a list of all ranks.
std::optional<std::vector<DimensionPlace>> places_in_layout(const PickleNode& layout, std::int64_t position) {
  const auto state = layout.state();
  const auto axes = state ? state_field(*state, "axes") : std::nullopt;
  if (!axes || axes->kind() != PickleKind::tuple) return std::nullopt;
  std::vector<DimensionPlace> places;
  for (std::size_t i = 0; i < axes->size() && i < kMaxAxes; ++i) {
    const auto size = only_number(axes->item(i), "shape");
    const auto stride = only_number(axes->item(i), "stride");
    if (!size || !stride || *size < 1 || *stride < 0 || *size > kMostRanks || *stride > kMostRanks)
      return std::nullopt;
    places.push_back({*stride == 0 ? 0 : position / *stride % *size, *size});
  }
  return places;
}

using Runs = std::vector<ElementRange>;

std::int64_t length_of(const Runs& runs) {
  std::int64_t length = 0;
  for (const auto& run : runs) length += run.size();
  return length;
}

/// Appends the elements [begin, end) of what the runs have, counted from their beginning.
void append_part(const Runs& runs, std::int64_t begin, std::int64_t end, Runs& into) {
  std::int64_t at = 0;
  for (const auto& run : runs) {
    const auto first = std::max(begin, at);
    const auto last = std::min(end, at + run.size());
    if (first < last) {
      const ElementRange part{run.start + first - at, run.start + last - at};
      if (!into.empty() && into.back().end == part.start) {
        into.back().end = part.end;
      } else {
        into.push_back(part);
      }
    }
    at += run.size();
  }
}

/// A piece of torch.chunk(): all pieces but the last ones have ceil(length / pieces).
ElementRange chunk_of(std::int64_t length, std::int64_t pieces, std::int64_t index) {
  const auto size = length / pieces + (length % pieces != 0 ? 1 : 0);
  return {std::min(length, index * size), std::min(length, (index + 1) * size)};
}

/// One piece of each of `split` chunks.
std::optional<Runs> shard_of(const Runs& runs, std::int64_t split, const DimensionPlace& place) {
  Runs part;
  const auto length = length_of(runs);
  for (std::int64_t i = 0; i < split; ++i) {
    const auto chunk = chunk_of(length, split, i);
    if (chunk.size() == 0) break;
    const auto piece = chunk_of(chunk.size(), place.size, place.coordinate);
    append_part(runs, chunk.start + piece.start, chunk.start + piece.end, part);
    if (part.size() > kMostRuns) return std::nullopt;
  }
  return part;
}

/// All combinations of one run of each axis.
bool boxes_of(const std::vector<Runs>& runs, std::vector<PlacedBox>& boxes) {
  boxes.push_back({});
  for (const auto& axis : runs) {
    std::vector<PlacedBox> next;
    if (boxes.size() * axis.size() > kMostRuns) return false;
    for (const auto& box : boxes) {
      std::int64_t at = 0;
      for (const auto& run : axis) {
        next.push_back(box);
        next.back().box.offset.push_back(run.start);
        next.back().box.extent.push_back(run.size());
        next.back().at.push_back(at);
        at += run.size();
      }
    }
    boxes = std::move(next);
  }
  return true;
}

Placed refused(std::string reason) {
  Placed placed;
  placed.refusal = std::move(reason);
  return placed;
}

std::string unknown_placement(std::string_view name, std::size_t i, std::size_t count) {
  return fmt::format("it is placed as {} on dimension {} of a mesh of {}, and the file does not say how",
                     name.empty() ? "something unknown" : name, i, count);
}

/// Ranks of a mesh's last dimension are neighbours.
Placed in_rank_order(const PickleNode& placements) {
  const std::size_t count = placements.size();
  Placed placed;
  for (std::size_t i = 0; i < count; ++i) {
    const auto placement = placements.item(i);
    const auto name = placement_name(placement);
    if (name == "Replicate") continue;
    if (name != "Shard" || i + 1 != count) return refused(unknown_placement(name, i, count));
    const auto axis = number_of(placement, "dim", 0);
    if (!axis || *axis < 0) return refused("its Shard has no axis");
    placed.axis = static_cast<std::size_t>(*axis);
  }
  return placed;
}

}  // namespace

std::optional<PickleNode> state_field(const PickleNode& state, std::string_view name) {
  const auto in_dict = [&](const PickleNode& dict) -> std::optional<PickleNode> {
    return dict.kind() == PickleKind::dict && dict.size() <= kMostFields ? dict.find(name) : std::nullopt;
  };
  if (state.kind() != PickleKind::tuple || state.size() != 2) return in_dict(state);
  const auto first = in_dict(state.item(0));
  return first ? first : in_dict(state.item(1));
}

std::optional<std::vector<DimensionPlace>> mesh_places(const TorchArchive& archive, const PickleNode& mesh,
                                                       std::int64_t rank) {
  const auto state = mesh.state();
  if (!state) return std::nullopt;
  Shape shape;
  if (const auto tensor = state_field(*state, "mesh")) {
    const auto ranks = integers_of(archive, *tensor, &shape);
    return ranks ? places_in_tensor(*ranks, shape, rank) : std::nullopt;
  }
  const auto layout = state_field(*state, "_layout");
  const auto map = state_field(*state, "_rank_map");
  const auto ranks = map ? integers_of(archive, *map, &shape) : std::nullopt;
  if (!layout || !ranks) return std::nullopt;
  const auto found = std::find(ranks->begin(), ranks->end(), rank);
  if (found == ranks->end()) return std::nullopt;
  return places_in_layout(*layout, static_cast<std::int64_t>(found - ranks->begin()));
}

Placed placed_parts(const PickleNode& placements, const std::optional<std::vector<DimensionPlace>>& places,
                    const Shape& shape) {
  if (!places || places->size() != placements.size()) return in_rank_order(placements);
  std::vector<Runs> runs;
  for (const auto extent : shape) runs.push_back({{0, extent}});
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const auto placement = placements.item(i);
    const auto name = placement_name(placement);
    if (name == "Replicate") continue;
    const bool is_strided = name == "_StridedShard";
    const auto axis = number_of(placement, "dim", 0);
    const auto split = is_strided ? number_of(placement, "split_factor", 1) : std::optional<std::int64_t>(1);
    if ((name != "Shard" && !is_strided) || !axis || !split || *axis < 0 || *split < 1 ||
        *split > static_cast<std::int64_t>(kMostRuns) || static_cast<std::size_t>(*axis) >= shape.size())
      return refused(unknown_placement(name, i, placements.size()));
    auto& cut = runs[static_cast<std::size_t>(*axis)];
    auto part = shard_of(cut, *split, (*places)[i]);
    if (!part) return refused("its parts are cut into too many ranges");
    cut = std::move(*part);
  }
  Placed placed;
  for (const auto& axis : runs) placed.local.push_back(length_of(axis));
  if (elements_of(placed.local) > 0 && !boxes_of(runs, placed.boxes))
    return refused("its parts are too many");
  placed.is_known = true;
  return placed;
}

}  // namespace troupe::core
