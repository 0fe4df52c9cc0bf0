#include "core/interop/torch_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/errors.hpp"
#include "core/interop/torch_names.hpp"
#include "core/utf8.hpp"

namespace troupe::core {
namespace {

constexpr std::size_t kLongestKey = 2048;
/// Attributes and kinds of state are searched among at most this many.
constexpr std::size_t kMostFields = 64;

/// The parts of a pickled DTensor.
struct Wrapped {
  PickleNode dtype, shape, local, placements;
  std::optional<PickleNode> mesh;
};

std::optional<Wrapped> dtensor_of(PickleNode node) {
  if (node.is_object_of("torch._utils", "_rebuild_parameter") && node.arguments()->size() == 3)
    node = node.arguments()->item(0);
  if (!node.is_object_of("torch._tensor", "_rebuild_from_type_v2")) return std::nullopt;
  const auto call = *node.arguments();
  if (call.size() != 4 || !call.item(0).is_global("torch._utils", "_rebuild_wrapper_subclass"))
    return std::nullopt;
  const auto made = call.item(2);
  if (call.item(1).name() != "DTensor" || made.kind() != PickleKind::tuple || made.size() < 3)
    return std::nullopt;
  const auto local = state_field(call.item(3), "_local_tensor");
  const auto spec = state_field(call.item(3), "_spec");
  const auto state = spec ? spec->state() : std::nullopt;
  const auto placements = state ? state_field(*state, "placements") : std::nullopt;
  if (!local || !placements || placements->kind() != PickleKind::tuple) return std::nullopt;
  return Wrapped{made.item(1), made.item(2), *local, *placements, state_field(*state, "mesh")};
}

class Collector {
 public:
  Collector(const TorchArchive& archive, std::int64_t rank)
      : archive_(archive), rank_(rank), key_bytes_left_((std::size_t{4} << 20) + 4 * pickle_bytes(archive)) {}

  Result<void> add(std::string key, const PickleNode& node) {
    // One dict may represent many, so its names are counted.
    const auto cost = sizeof(TorchPart) + key.size();
    if (cost > key_bytes_left_)
      return fail(Errc::corrupt, "torch: more tensors than a pickle of this size holds; it is damaged");
    key_bytes_left_ -= cost;
    auto part = read(std::move(key), node);
    if (!part && part.error().code != Errc::unavailable) return tl::unexpected(part.error());
    return {};
  }

  void leave_out(std::string key, std::string reason) {
    found_.left_out.push_back({std::move(key), std::move(reason)});
  }

  TorchParts take() { return std::move(found_); }

 private:
  static std::size_t pickle_bytes(const TorchArchive& archive) {
    const auto* entry = archive.files.find("data.pkl");
    return entry != nullptr ? entry->bytes : 0;
  }

  Result<void> read(std::string key, const PickleNode& node) {
    TorchPart part;
    part.key = std::move(key);
    const auto wrapped = dtensor_of(node);
    if (!wrapped && !is_torch_tensor(node)) {
      leave_out(std::move(part.key), fmt::format("it is a {} and no tensor", class_name(node)));
      return {};
    }
    auto local = torch_tensor(archive_, wrapped ? wrapped->local : node);
    if (!local) {
      const auto& error = local.error();
      if (error.code != Errc::unavailable) return fail(error.code, "'{}': {}", part.key, error.message);
      leave_out(std::move(part.key), error.message);
      return {};
    }
    part.local = std::move(*local);
    part.dtype = part.local.dtype;
    part.shape = part.local.shape;
    if (wrapped) {
      const auto refusal = TRY(read_dtensor(*wrapped, part));
      if (!refusal.empty()) {
        leave_out(std::move(part.key), refusal);
        return {};
      }
    }
    found_.parts.push_back(std::move(part));
    return {};
  }

  /// Why the tensor is skipped; empty if it is not.
  Result<std::string> read_dtensor(const Wrapped& wrapped, TorchPart& part) {
    part.is_dtensor = true;
    part.shape = TRY(shape_from_pickle(wrapped.shape));
    if (const auto good = check_shape(part.shape); !good)
      return fail(Errc::corrupt, "torch: '{}': {}", part.key, good.error().message);
    const auto places = wrapped.mesh ? mesh_places(archive_, *wrapped.mesh, rank_) : std::nullopt;
    auto placed = placed_parts(wrapped.placements, places, part.shape);
    if (!placed.refusal.empty()) return placed.refusal;
    part.is_placed = placed.is_known;
    part.boxes = std::move(placed.boxes);
    part.axis = placed.axis;
    auto expected = part.is_placed ? placed.local : part.shape;
    const auto& found = part.local.shape;
    if (part.axis && *part.axis < expected.size() && found.size() == expected.size())
      expected[*part.axis] = std::min(found[*part.axis], expected[*part.axis]);
    const bool is_cut_well = !part.axis || *part.axis < part.shape.size();
    if (part.is_placed && found != expected)
      return fail(
          Errc::corrupt,
          "torch: the part of '{}' has shape {}, and rank {} has {} of it; is this another rank's file?",
          part.key, to_string(found), rank_, to_string(expected));
    if (found != expected || !is_cut_well || wrapped.dtype.kind() != PickleKind::global ||
        wrapped.dtype.name() != torch_name(part.dtype))
      return fail(Errc::corrupt,
                  "torch: the part of '{}' has shape {} and dtype {}, which cannot belong to {} {}", part.key,
                  to_string(found), torch_name(part.dtype), wrapped.dtype.name(), to_string(part.shape));
    return std::string();
  }

  const TorchArchive& archive_;
  std::int64_t rank_;
  std::size_t key_bytes_left_;
  TorchParts found_;
};

Result<PickleNode> state_dict_of(const TorchArchive& archive) {
  const auto dict = torch_dict(archive.object.root());
  if (!dict)
    return fail(Errc::corrupt, "torch: expected a state dict, found {}", class_name(archive.object.root()));
  return *dict;
}

/// The names of the parameters as numbered by an optimizer of all of them, in that order.
std::vector<const TorchPart*> numbered(const TorchParts& model) {
  std::unordered_map<std::uint64_t, const TorchPart*> places;
  std::vector<const TorchPart*> parameters;
  for (const auto& part : model.parts) {
    if (!part.is_dtensor) continue;
    // Tied parameters have the same place; parts without elements say nothing about theirs.
    const bool is_tied = part.local.bytes > 0 && !places.try_emplace(part.local.offset, &part).second;
    if (!is_tied) parameters.push_back(&part);
  }
  return parameters;
}

}  // namespace

Result<TorchParts> torch_model_parts(const TorchArchive& archive, std::int64_t rank) {
  const auto dict = TRY(state_dict_of(archive));
  Collector collector(archive, rank);
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const auto key = dict.key(i).as_text();
    if (!key || key->empty() || key->size() > kLongestKey || !seen.insert(*key).second)
      return fail(Errc::corrupt, "torch: '{}' appears twice in a state dict, or is not a name",
                  beginning_of(key.value_or("")));
    TRY(collector.add(std::string(*key), dict.value(i)));
  }
  return collector.take();
}

std::optional<PickleNode> torch_parameter_groups(const TorchArchive& archive) {
  const auto dict = torch_dict(archive.object.root());
  return dict ? state_field(*dict, "param_groups") : std::nullopt;
}

Result<TorchParts> torch_optimizer_parts(const TorchArchive& archive, const TorchParts& model,
                                         std::int64_t rank) {
  const auto dict = TRY(state_dict_of(archive));
  const auto found = state_field(dict, "state");
  const auto groups = torch_parameter_groups(archive);
  const auto state = found ? torch_dict(*found) : std::nullopt;
  if (!state || !groups || groups->kind() != PickleKind::list)
    return fail(Errc::corrupt, "torch: expected the state dict of an optimizer, with state and param_groups");
  const auto parameters = numbered(model);
  const auto members = groups->size() == 1 ? state_field(groups->item(0), "params") : std::nullopt;
  Collector collector(archive, rank);
  if (!members || members->size() != parameters.size()) {
    collector.leave_out("optimizer.state",
                        fmt::format("it numbers parameters in {} groups, and only one group of all {} "
                                    "sharded parameters of the model says which they are",
                                    groups->size(), parameters.size()));
    return collector.take();
  }
  std::unordered_set<std::int64_t> seen;
  for (std::size_t i = 0; i < state->size(); ++i) {
    const auto number = state->key(i).as_integer();
    const auto kinds = torch_dict(state->value(i));
    if (!number || *number < 0 || static_cast<std::size_t>(*number) >= parameters.size() ||
        !seen.insert(*number).second || !kinds || kinds->size() > kMostFields)
      return fail(Errc::corrupt, "torch: an optimizer's state must have a dict for each of {} parameters",
                  parameters.size());
    const auto& parameter = *parameters[static_cast<std::size_t>(*number)];
    for (std::size_t k = 0; k < kinds->size(); ++k) {
      const auto kind = kinds->key(k).as_text();
      if (!kind || kind->size() > kLongestKey)
        return fail(Errc::corrupt, "torch: the state of parameter {} has no name", *number);
      TRY(collector.add(fmt::format("optimizer.state.{}.{}", parameter.key, *kind), kinds->value(k)));
    }
  }
  return collector.take();
}

namespace {

/// A box of what a rank has, which begins `at` there.
TorchShard shard_of(std::uint32_t rank, const TorchTensor& local, const PlacedBox& placed) {
  const auto width = static_cast<std::uint64_t>(size_of(local.dtype));
  Shape strides = local.strides;
  if (strides.empty()) {
    strides.assign(local.shape.size(), 1);
    for (std::size_t axis = strides.size(); axis-- > 1;)
      strides[axis - 1] = strides[axis] * local.shape[axis];
  }
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  for (std::size_t axis = 0; axis < strides.size(); ++axis) {
    first += static_cast<std::uint64_t>(placed.at[axis] * strides[axis]);
    last += static_cast<std::uint64_t>((placed.box.extent[axis] - 1) * strides[axis]);
  }
  TorchShard shard{placed.box, rank, local.offset + first * width, 0, {}, (last + 1) * width};
  shard.bytes = static_cast<std::uint64_t>(placed.box.elements()) * width;
  if (!local.strides.empty() || shard.bytes != shard.stored_bytes) shard.strides = std::move(strides);
  return shard;
}

/// The parts of one tensor, in rank order.
class Merge {
 public:
  explicit Merge(const TorchPart& first)
      : merged_{first.key, first.dtype, first.shape, first.is_dtensor, {}, {}},
        axis_(first.axis),
        is_placed_(first.is_placed) {}

  Result<void> add(std::uint32_t rank, const TorchPart& part) {
    if (part.dtype != merged_.dtype || part.shape != merged_.shape || part.axis != axis_ ||
        part.is_dtensor != merged_.is_dtensor || part.is_placed != is_placed_)
      return fail(Errc::corrupt, "torch: rank {} describes '{}' differently from rank 0: {} {}, not {} {}",
                  rank, part.key, torch_name(part.dtype), to_string(part.shape), torch_name(merged_.dtype),
                  to_string(merged_.shape));
    if (part.local.bytes == 0) return {};
    return is_placed_ ? add_placed(rank, part) : add_next(rank, part);
  }

  Result<MergedTensor> finish() {
    if (elements_of(merged_.shape) == 0) return std::move(merged_);
    if (is_placed_) {
      std::vector<Box> boxes;
      for (const auto& shard : merged_.shards) boxes.push_back(shard.box);
      const auto good = check_exact_cover(merged_.shape, boxes);
      if (good) return std::move(merged_);
      return fail(Errc::corrupt, "torch: the parts of '{}' do not cover it; is a rank's file missing? {}",
                  merged_.key, good.error().message);
    }
    const std::int64_t whole = axis_ ? merged_.shape[*axis_] : 1;
    if (position_ == whole) return std::move(merged_);
    return fail(Errc::corrupt,
                "torch: the parts of '{}' have {} of {} along axis {}; is a rank's file missing?",
                merged_.key, position_, whole, axis_.value_or(0));
  }

 private:
  Result<void> add_placed(std::uint32_t rank, const TorchPart& part) {
    for (const auto& placed : part.boxes) {
      const bool is_new = seen_.insert(placed.box).second;
      (is_new ? merged_.shards : merged_.copies).push_back(shard_of(rank, part.local, placed));
    }
    return {};
  }

  /// Along an axis the parts follow each other, and then those of the next replica.
  Result<void> add_next(std::uint32_t rank, const TorchPart& part) {
    PlacedBox next{{Shape(part.shape.size(), 0), part.local.shape}, Shape(part.shape.size(), 0)};
    const std::int64_t whole = axis_ ? part.shape[*axis_] : 1;
    const std::int64_t length = axis_ ? part.local.shape[*axis_] : 1;
    if (position_ == whole) {
      is_covered_ = true;
      position_ = 0;
    }
    if (axis_) next.box.offset[*axis_] = position_;
    position_ += length;
    auto& into = is_covered_ ? merged_.copies : merged_.shards;
    into.push_back(shard_of(rank, part.local, next));
    const bool is_again =
        !is_covered_ || into.back().box == merged_.shards[copied_++ % merged_.shards.size()].box;
    if (position_ > whole || !is_again)
      return fail(Errc::corrupt, "torch: the part of '{}' of rank {} does not follow those before it",
                  part.key, rank);
    return {};
  }

  MergedTensor merged_;
  std::optional<std::size_t> axis_;
  bool is_placed_;
  std::set<Box> seen_;         ///< of what is placed
  std::int64_t position_ = 0;  ///< along the axis; for a whole tensor 1 once it is present
  std::size_t copied_ = 0;
  bool is_covered_ = false;
};

}  // namespace

Result<std::vector<MergedTensor>> merge_torch_parts(std::span<const TorchParts> ranks) {
  std::vector<Merge> merges;
  std::unordered_map<std::string_view, std::size_t> places;
  if (ranks.empty()) return std::vector<MergedTensor>{};
  for (const auto& part : ranks.front().parts) {
    places.emplace(part.key, merges.size());
    merges.emplace_back(part);
  }
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& part : ranks[rank].parts) {
      const auto place = places.find(part.key);
      if (place == places.end())
        return fail(Errc::corrupt, "torch: rank {} has '{}', which rank 0 has not", rank, part.key);
      TRY(merges[place->second].add(rank, part));
    }
    if (ranks[rank].parts.size() != merges.size())
      return fail(Errc::corrupt, "torch: rank {} has {} tensors, and rank 0 has {}", rank,
                  ranks[rank].parts.size(), merges.size());
  }
  std::vector<MergedTensor> merged;
  merged.reserve(merges.size());
  for (auto& merge : merges) merged.push_back(TRY(merge.finish()));
  return merged;
}

}  // namespace troupe::core
