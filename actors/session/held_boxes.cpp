#include "actors/session/held_boxes.hpp"

#include <utility>

namespace troupe::actors {

void HeldBoxes::add(const core::SaveStructure& structure, std::span<const std::span<std::byte>> memory) {
  for (std::size_t i = 0; i < structure.pieces.size(); ++i) {
    const auto& piece = structure.pieces[i];
    boxes_.emplace(Key{structure.tensors[piece.tensor].key, piece.box}, memory[i]);
  }
}

LoadExchange::MemoryOf HeldBoxes::lookup(const core::Manifest& manifest) const {
  std::map<std::uint64_t, std::span<const std::byte>> at;
  for (const auto& tensor : manifest.tensors) {
    for (const auto& shard : tensor.shards) {
      const auto found = boxes_.find({tensor.key, shard.box});
      if (found != boxes_.end()) at.emplace(shard.begin, found->second);
    }
  }
  return [at = std::move(at)](const core::ManifestShard& shard) {
    const auto found = at.find(shard.begin);
    return found == at.end() ? std::span<const std::byte>{} : found->second;
  };
}

}  // namespace troupe::actors
