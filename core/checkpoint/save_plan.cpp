#include "core/checkpoint/save_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/check.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/hash.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;
using Tensor = SaveStructure::Tensor;

/// Distinct structures and the ranks that have them.
struct StructureClass {
  const SaveStructure* structure = nullptr;
  std::vector<std::uint32_t> ranks;
};

struct Holder {
  std::uint32_t structure = 0;  ///< index of the classes
  std::uint32_t piece = 0;
};

/// A box and everybody who has it.
struct Shard {
  std::uint32_t tensor = 0;  ///< index of the job's tensors
  const Box* box = nullptr;
  std::uint64_t bytes = 0;
  std::size_t ranks = 0;
  std::vector<Holder> holders;
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

class Planner {
 public:
  explicit Planner(std::span<const SaveStructure* const> structures)
      : world_(structures.size()), classes_(classes_of(structures)) {}

  Result<SavePlan> plan() {
    for (std::uint32_t i = 0; i < classes_.size(); ++i) TRY(add(i));
    TRY(check_cover());
    return distribute();
  }

 private:
  Result<void> add(std::uint32_t structure) {
    const auto& from = *classes_[structure].structure;
    std::vector<std::uint32_t> ids;
    for (const auto& tensor : from.tensors) ids.push_back(TRY(id_of(tensor, structure)));
    for (std::uint32_t piece = 0; piece < from.pieces.size(); ++piece) {
      const auto& box = from.pieces[piece].box;
      if (box.is_empty()) continue;
      const auto tensor = ids[from.pieces[piece].tensor];
      auto [found, is_new] = places_.try_emplace({tensor, &box}, static_cast<std::uint32_t>(shards_.size()));
      if (is_new) shards_.push_back({tensor, &box, from.bytes_of(from.pieces[piece]), 0, {}});
      auto& shard = shards_[found->second];
      shard.holders.push_back({structure, piece});
      shard.ranks += classes_[structure].ranks.size();
    }
    return {};
  }

  Result<std::uint32_t> id_of(const Tensor& tensor, std::uint32_t structure) {
    auto [found, is_new] = ids_.try_emplace(tensor.key, static_cast<std::uint32_t>(tensors_.size()));
    if (is_new) {
      tensors_.push_back(&tensor);
      first_.push_back(classes_[structure].ranks.front());
      return found->second;
    }
    const auto& known = *tensors_[found->second];
    if (known.dtype == tensor.dtype && known.shape == tensor.shape) return found->second;
    return fail(Errc::mismatch,
                "tensor '{}' is {} of shape {} on rank {} and {} of shape {} on rank {}; give it one form",
                tensor.key, name_of(known.dtype), to_string(known.shape), first_[found->second],
                name_of(tensor.dtype), to_string(tensor.shape), classes_[structure].ranks.front());
  }

  Result<void> check_cover() const {
    std::vector<std::vector<Box>> boxes(tensors_.size());
    for (const auto& shard : shards_) boxes[shard.tensor].push_back(*shard.box);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      auto good = check_exact_cover(tensors_[i]->shape, boxes[i]);
      if (!good) return fail(good.error().code, "tensor '{}': {}", tensors_[i]->key, good.error().message);
    }
    return {};
  }

  SavePlan distribute() const {
    std::vector<const Shard*> order;
    for (const auto& shard : shards_) order.push_back(&shard);
    std::sort(order.begin(), order.end(), [this](const Shard* a, const Shard* b) {
      if (a->ranks != b->ranks) return a->ranks < b->ranks;
      if (a->bytes != b->bytes) return a->bytes > b->bytes;
      if (a->tensor != b->tensor) return tensors_[a->tensor]->key < tensors_[b->tensor]->key;
      return a->box->offset < b->box->offset;
    });
    SavePlan plan;
    plan.assigned.resize(world_);
    std::vector<std::uint64_t> load(world_);
    for (const Shard* shard : order) {
      std::pair<std::uint64_t, std::uint32_t> least{UINT64_MAX, 0};
      std::uint32_t piece = 0;
      for (const auto& holder : shard->holders) {
        for (auto rank : classes_[holder.structure].ranks) {
          if (std::pair(load[rank], rank) >= least) continue;
          least = {load[rank], rank};
          piece = holder.piece;
        }
      }
      load[least.second] += shard->bytes;
      plan.bytes += shard->bytes;
      plan.assigned[least.second].push_back(piece);
    }
    for (auto& pieces : plan.assigned) std::sort(pieces.begin(), pieces.end());
    return plan;
  }

  std::size_t world_;
  std::vector<StructureClass> classes_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;
  std::vector<const Tensor*> tensors_;
  std::vector<std::uint32_t> first_;  ///< per tensor, the rank whose description counts
  std::vector<Shard> shards_;
  std::unordered_map<std::pair<std::uint32_t, const Box*>, std::uint32_t, BoxHash, BoxEqual> places_;
};

Result<Shape> shape_of(const Json& json) {
  if (!json.is_array() || json.size() > 64) return fail(Errc::corrupt, "a shape is no list of sizes");
  Shape shape;
  for (const auto& extent : json) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > (std::uint64_t{1} << 62))
      return fail(Errc::corrupt, "a size is no number from 0 to 2^62");
    shape.push_back(extent.get<std::int64_t>());
  }
  TRY(check_shape(shape));
  return shape;
}

}  // namespace

std::uint64_t SaveStructure::bytes_of(const SavePiece& piece) const {
  return static_cast<std::uint64_t>(piece.box.elements()) * size_of(tensors[piece.tensor].dtype);
}

std::string to_text(const SaveStructure& structure) {
  Json tensors = Json::array();
  for (const auto& tensor : structure.tensors)
    tensors.push_back({tensor.key, name_of(tensor.dtype), tensor.shape});
  Json pieces = Json::array();
  for (const auto& piece : structure.pieces)
    pieces.push_back({piece.tensor, piece.box.offset, piece.box.extent});
  return Json{{"tensors", tensors}, {"pieces", pieces}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<SaveStructure> parse_structure(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  auto bad = [] { return fail(Errc::corrupt, "the structure of a save does not parse"); };
  if (!json.is_object() || !json.contains("tensors") || !json.contains("pieces")) return bad();
  SaveStructure structure;
  for (const auto& tensor : json["tensors"]) {
    if (!tensor.is_array() || tensor.size() != 3 || !tensor[0].is_string() || !tensor[1].is_string())
      return bad();
    auto dtype = TRY(dtype_from_name(tensor[1].get_ref<const std::string&>()));
    structure.tensors.push_back({tensor[0].get<std::string>(), dtype, TRY(shape_of(tensor[2]))});
  }
  for (const auto& piece : json["pieces"]) {
    if (!piece.is_array() || piece.size() != 3 || !piece[0].is_number_unsigned()) return bad();
    const auto tensor = piece[0].get<std::uint64_t>();
    Box box{TRY(shape_of(piece[1])), TRY(shape_of(piece[2]))};
    if (tensor >= structure.tensors.size() || !box.lies_in(structure.tensors[tensor].shape)) return bad();
    structure.pieces.push_back({static_cast<std::uint32_t>(tensor), std::move(box)});
  }
  return structure;
}

std::vector<PlannedFile> plan_files(const SaveStructure& structure, std::span<const std::uint32_t> assigned,
                                    Rank rank) {
  std::vector<std::uint32_t> parts(structure.tensors.size());
  std::vector<PlannedFile> files;
  for (auto index : assigned) {
    const auto file = parts[structure.pieces[index].tensor]++;
    if (file == files.size())
      files.push_back({fmt::format("shard_{:05}_{}.safetensors", rank.value, file), {}, {}});
    files[file].shards.push_back({index, 0, 0});
  }
  for (auto& file : files) {
    std::vector<SafetensorsEntry> entries;
    std::vector<Shape> offsets;
    for (const auto& shard : file.shards) {
      const auto& piece = structure.pieces[shard.piece];
      const auto& tensor = structure.tensors[piece.tensor];
      entries.push_back({tensor.key, tensor.dtype, piece.box.extent, 0, 0});
      offsets.push_back(piece.box.offset);
    }
    file.header = safetensors_header(entries, sharding_metadata(entries, offsets));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      file.shards[i].begin = entries[i].begin;
      file.shards[i].end = entries[i].end;
    }
  }
  return files;
}

Result<SavePlan> plan_save(std::span<const SaveStructure* const> structures) {
  return Planner(structures).plan();
}

Manifest manifest_of(std::span<const SaveStructure* const> structures, const SavePlan& plan,
                     std::span<const WrittenShards> written) {
  Manifest manifest;
  std::unordered_map<std::string_view, std::uint32_t> ids;
  for (std::uint32_t rank = 0; rank < structures.size(); ++rank) {
    const auto& structure = *structures[rank];
    std::size_t next = 0;
    for (const auto& file :
         plan_files(structure, plan.assigned[rank], Rank{static_cast<std::int32_t>(rank)})) {
      const auto number = static_cast<std::uint32_t>(manifest.files.size());
      manifest.files.push_back({file.name, file.bytes(), file.header.size(), hash64(file.header)});
      for (const auto& shard : file.shards) {
        const auto& piece = structure.pieces[shard.piece];
        const auto& tensor = structure.tensors[piece.tensor];
        auto [found, is_new] =
            ids.try_emplace(tensor.key, static_cast<std::uint32_t>(manifest.tensors.size()));
        if (is_new) manifest.tensors.push_back({tensor.key, tensor.dtype, tensor.shape, {}});
        CHECK(next < written[rank].hashes.size(), "a hash comes with every shard that was written");
        manifest.tensors[found->second].shards.push_back(
            {piece.box, number, shard.begin, shard.end, written[rank].hashes[next++]});
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
