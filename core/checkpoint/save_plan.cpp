#include "core/checkpoint/save_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "core/boxes/distribution.hpp"
#include "core/checkpoint/json_cursor.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/utf8.hpp"

namespace troupe::core {

namespace {

using Tensor = SaveStructure::Tensor;

/// Distinct structures and the ranks that have them.
struct StructureClass {
  const SaveStructure* structure = nullptr;
  HolderSet ranks;
};

constexpr std::uint32_t kNone = UINT32_MAX;

struct Holder {
  std::uint32_t structure = 0;  ///< index in the classes
  std::uint32_t piece = 0;
  std::uint32_t before = kNone;  ///< the previously found holder of the same box
};

/// A box and all its holders.
struct Shard {
  std::uint32_t tensor = 0;  ///< index in the job's tensors
  const Box* box = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t last_holder = kNone;
};

struct BoxHash {
  std::size_t operator()(const std::pair<std::uint32_t, const Box*>& key) const {
    const auto bytes = [](const Shape& shape) { return std::as_bytes(std::span(shape)); };
    return hash64(bytes(key.second->extent), hash64(bytes(key.second->offset), key.first));
  }
};
struct BoxEqual {
  bool operator()(const auto& a, const auto& b) const { return a.first == b.first && *a.second == *b.second; }
};

std::vector<StructureClass> classes_of(std::span<const SaveStructure* const> structures) {
  std::vector<StructureClass> classes;
  std::unordered_map<const SaveStructure*, std::size_t> seen;
  for (std::uint32_t rank = 0; rank < structures.size(); ++rank) {
    auto [found, is_new] = seen.try_emplace(structures[rank], classes.size());
    if (is_new) classes.push_back({structures[rank], {}});
    classes[found->second].ranks.push_back(rank);
  }
  return classes;
}

/// Checks the limits of a file and its readers.
Result<void> check_tensor(const Tensor& tensor) {
  TRY(check_key(tensor.key));
  if (auto good = check_shape(tensor.shape); !good)
    return fail(Errc::invalid_argument, "tensor '{}': {}", tensor.key, good.error().message);
  constexpr auto kMaxBytes = std::numeric_limits<std::int64_t>::max();
  if (tensor.shape.size() > kMaxAxes ||
      elements_of(tensor.shape) > kMaxBytes / static_cast<std::int64_t>(size_of(tensor.dtype)))
    return fail(Errc::invalid_argument, "tensor '{}' of shape {} has more than {} axes or 2^63 bytes",
                tensor.key, to_string(tensor.shape), kMaxAxes);
  return {};
}

class Planner {
 public:
  explicit Planner(std::span<const SaveStructure* const> structures)
      : world_(structures.size()), classes_(classes_of(structures)) {}

  Result<SavePlan> plan() {
    std::size_t pieces = 0;
    for (const auto& one : classes_) pieces = std::max(pieces, one.structure->pieces.size());
    places_.reserve(pieces);
    for (std::uint32_t i = 0; i < classes_.size(); ++i) TRY(add(i));
    TRY(check_cover());
    return share_out();
  }

 private:
  Result<void> add(std::uint32_t structure) {
    const auto& from = *classes_[structure].structure;
    std::vector<std::uint32_t> ids;
    ids.reserve(from.tensors.size());
    for (const auto& tensor : from.tensors) {
      const auto id = TRY(id_of(tensor, structure));
      if (last_lister_.size() <= id) last_lister_.resize(id + 1, kNone);
      if (std::exchange(last_lister_[id], structure) == structure)
        return fail(Errc::invalid_argument,
                    "rank {} lists tensor '{}' twice; list it once, with all its pieces",
                    classes_[structure].ranks.front(), tensor.key);
      ids.push_back(id);
    }
    for (std::uint32_t piece = 0; piece < from.pieces.size(); ++piece) {
      const auto& box = from.pieces[piece].box;
      if (box.is_empty()) continue;
      const auto tensor = ids[from.pieces[piece].tensor];
      auto [found, is_new] = places_.try_emplace({tensor, &box}, static_cast<std::uint32_t>(shards_.size()));
      if (is_new) shards_.push_back({tensor, &box, from.bytes_of(from.pieces[piece])});
      auto& shard = shards_[found->second];
      // A rank that lists a box twice counts as one holder.
      if (!is_new && holders_[shard.last_holder].structure == structure) continue;
      holders_.push_back({structure, piece, shard.last_holder});
      shard.last_holder = static_cast<std::uint32_t>(holders_.size() - 1);
    }
    return {};
  }

  Result<std::uint32_t> id_of(const Tensor& tensor, std::uint32_t structure) {
    auto [found, is_new] = ids_.try_emplace(tensor.key, static_cast<std::uint32_t>(tensors_.size()));
    if (is_new) {
      TRY(check_tensor(tensor));
      tensors_.push_back(&tensor);
      first_.push_back(classes_[structure].ranks.front());
      homes_.push_back({tensor.home, structure});
      return found->second;
    }
    TRY(check_home(tensor, found->second, structure));
    const auto& known = *tensors_[found->second];
    if (known.dtype == tensor.dtype && known.shape == tensor.shape) return found->second;
    return fail(Errc::mismatch,
                "tensor '{}' is {} of shape {} on rank {} and {} of shape {} on rank {}; give it one form",
                tensor.key, name_of(known.dtype), to_string(known.shape), first_[found->second],
                name_of(tensor.dtype), to_string(tensor.shape), classes_[structure].ranks.front());
  }

  Result<void> check_home(const Tensor& tensor, std::uint32_t id, std::uint32_t structure) {
    auto& [home, keeper] = homes_[id];
    if (home == 0) {
      home = tensor.home;
      keeper = structure;
    }
    if (tensor.home == 0 || tensor.home == home) return {};
    return fail(Errc::invalid_argument,
                "rank {} and rank {} both store a tensor of their own as '{}'; give parameters of different "
                "stages, experts of different ranks and the trainer's own tensors different names, or mark a "
                "parameter that stages share as a copy (ParameterSpec::is_copy, TROUPE_COPY)",
                classes_[keeper].ranks.front(), classes_[structure].ranks.front(), tensor.key);
  }

  Result<void> check_cover() const {
    std::vector<std::vector<const Box*>> boxes(tensors_.size());
    for (const auto& shard : shards_) boxes[shard.tensor].push_back(shard.box);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      auto good = check_exact_cover(tensors_[i]->shape, boxes[i]);
      if (!good) return fail(good.error().code, "tensor '{}': {}", tensors_[i]->key, good.error().message);
    }
    return {};
  }

  /// The position of each tensor in the order of their keys.
  std::vector<std::uint32_t> places_by_key() const {
    std::vector<std::uint32_t> order(tensors_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [this](std::uint32_t a, std::uint32_t b) { return tensors_[a]->key < tensors_[b]->key; });
    std::vector<std::uint32_t> places(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) places[order[i]] = i;
    return places;
  }

  /// The ranks that hold the shard, as an index in `sets`, which begin with those of the classes.
  std::uint32_t holders_of(const Shard& shard, std::vector<HolderSet>& sets) const {
    const auto& last = holders_[shard.last_holder];
    if (last.before == kNone) return last.structure;
    HolderSet all;
    for (auto i = shard.last_holder; i != kNone; i = holders_[i].before) {
      const auto& ranks = classes_[holders_[i].structure].ranks;
      all.insert(all.end(), ranks.begin(), ranks.end());
    }
    sets.push_back(std::move(all));
    return static_cast<std::uint32_t>(sets.size() - 1);
  }

  SavePlan share_out() const {
    const auto by_key = places_by_key();
    std::vector<HolderSet> sets;
    std::vector<std::uint32_t> class_of(world_);
    for (std::uint32_t i = 0; i < classes_.size(); ++i) {
      sets.push_back(classes_[i].ranks);
      for (auto rank : classes_[i].ranks) class_of[rank] = i;
    }
    std::vector<HeldShard> held;
    held.reserve(shards_.size());
    for (const auto& shard : shards_)
      held.push_back({holders_of(shard, sets), by_key[shard.tensor], &shard.box->offset, shard.bytes});
    const auto owners = distribute(DistributionPurpose::save, held, sets, world_);
    SavePlan plan;
    plan.assigned.resize(world_);
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      auto holder = shards_[i].last_holder;
      while (holders_[holder].structure != class_of[owners[i]]) holder = holders_[holder].before;
      plan.assigned[owners[i]].push_back(holders_[holder].piece);
      plan.bytes += shards_[i].bytes;
    }
    for (auto& pieces : plan.assigned) std::sort(pieces.begin(), pieces.end());
    return plan;
  }

  std::size_t world_;
  std::vector<StructureClass> classes_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;
  std::vector<const Tensor*> tensors_;
  std::vector<std::uint32_t> first_;  ///< per tensor, the rank whose description is used
  /// Per tensor, its home, and the first structure that has it there.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> homes_;
  std::vector<std::uint32_t> last_lister_;  ///< per tensor, the structure that listed it last
  std::vector<Shard> shards_;
  std::vector<Holder> holders_;
  std::unordered_map<std::pair<std::uint32_t, const Box*>, std::uint32_t, BoxHash, BoxEqual> places_;
};

/// One file of the pieces, or several where its header would be longer than readers accept.
void add_files(const SaveStructure& structure, std::span<const std::uint32_t> pieces,
               std::uint64_t max_header_bytes, std::vector<PlannedFile>& files) {
  PlannedFile file;
  std::vector<SafetensorsEntry> entries;
  std::vector<Shape> offsets;
  for (auto index : pieces) {
    const auto& piece = structure.pieces[index];
    const auto& tensor = structure.tensors[piece.tensor];
    entries.push_back({tensor.key, tensor.dtype, piece.box.extent, 0, 0});
    offsets.push_back(piece.box.offset);
  }
  file.header = safetensors_header(entries, sharding_metadata(entries, offsets));
  if (file.header.size() > sizeof(std::uint64_t) + max_header_bytes && pieces.size() > 1) {
    const auto half = pieces.size() / 2;
    add_files(structure, pieces.first(half), max_header_bytes, files);
    add_files(structure, pieces.subspan(half), max_header_bytes, files);
    return;
  }
  for (std::size_t i = 0; i < entries.size(); ++i)
    file.shards.push_back({pieces[i], entries[i].begin, entries[i].end});
  files.push_back(std::move(file));
}

}  // namespace

Result<void> check_key(std::string_view key) {
  if (!is_utf8(key))
    return fail(Errc::invalid_argument, "the name of a tensor is not UTF-8: {:?}; give it another name", key);
  if (key == kMetadataName)
    return fail(Errc::invalid_argument, "no tensor can have the name '{}'; give it another one", key);
  return {};
}

std::vector<std::uint32_t> pieces_with_bytes(const SaveStructure& structure) {
  std::vector<std::uint32_t> pieces;
  for (std::uint32_t piece = 0; piece < structure.pieces.size(); ++piece) {
    if (!structure.pieces[piece].box.is_empty()) pieces.push_back(piece);
  }
  return pieces;
}

std::vector<PlannedFile> plan_files(const SaveStructure& structure, std::span<const std::uint32_t> assigned,
                                    Rank rank, std::uint64_t max_header_bytes) {
  std::vector<std::uint32_t> parts(structure.tensors.size());
  std::vector<std::vector<std::uint32_t>> pieces_of_files;
  for (auto index : assigned) {
    const auto file = parts[structure.pieces[index].tensor]++;
    if (file == pieces_of_files.size()) pieces_of_files.emplace_back();
    pieces_of_files[file].push_back(index);
  }
  std::vector<PlannedFile> files;
  for (const auto& pieces : pieces_of_files) add_files(structure, pieces, max_header_bytes, files);
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name = fmt::format("shard_{:05}_{}.safetensors", rank.value, i);
  return files;
}

Result<SavePlan> plan_save(std::span<const SaveStructure* const> structures) {
  return Planner(structures).plan();
}

Manifest manifest_of(std::span<const SaveStructure* const> structures, const SavePlan& plan,
                     std::span<const WrittenShards> written) {
  Manifest manifest;
  std::unordered_map<std::string_view, std::uint32_t> ids;
  auto tensor_of = [&](const Tensor& tensor) -> ManifestTensor& {
    auto [found, is_new] = ids.try_emplace(tensor.key, static_cast<std::uint32_t>(manifest.tensors.size()));
    if (is_new) manifest.tensors.push_back({tensor.key, tensor.dtype, tensor.shape, {}});
    return manifest.tensors[found->second];
  };
  for (std::uint32_t rank = 0; rank < structures.size(); ++rank) {
    const auto& structure = *structures[rank];
    // No rank writes a part of an empty tensor, but the tensor exists.
    for (const auto& tensor : structure.tensors) {
      if (elements_of(tensor.shape) == 0) tensor_of(tensor);
    }
    std::size_t next = 0;
    for (const auto& file :
         plan_files(structure, plan.assigned[rank], Rank{static_cast<std::int32_t>(rank)})) {
      const auto number = static_cast<std::uint32_t>(manifest.files.size());
      manifest.files.push_back({file.name, file.bytes(), file.header.size(), hash64(file.header)});
      for (const auto& shard : file.shards) {
        const auto& piece = structure.pieces[shard.piece];
        CHECK(next < written[rank].hashes.size(), "a hash comes with every shard that was written");
        tensor_of(structure.tensors[piece.tensor])
            .shards.push_back({piece.box, number, shard.begin, shard.end, written[rank].hashes[next++]});
      }
    }
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const ManifestTensor& a, const ManifestTensor& b) { return a.key < b.key; });
  for (auto& tensor : manifest.tensors) {
    std::sort(tensor.shards.begin(), tensor.shards.end(),
              [](const ManifestShard& a, const ManifestShard& b) { return a.box < b.box; });
  }
  return manifest;
}

}  // namespace troupe::core
