#include "actors/checkpoint/chunks.hpp"

#include <algorithm>
#include <tuple>

namespace troupe::actors {

std::vector<SaveChunk> chunks_of(const core::SaveStructure& structure,
                                 std::span<const core::PlannedFile> files,
                                 std::span<const std::uint32_t> bucket_of, std::uint64_t chunk_bytes) {
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>> pieces;
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    for (const auto& shard : files[file].shards) pieces.emplace_back(shard.piece, file, shard.begin);
  }
  std::sort(pieces.begin(), pieces.end());
  std::vector<SaveChunk> chunks;
  for (const auto& [piece, file, begin] : pieces) {
    const auto bytes = structure.bytes_of(structure.pieces[piece]);
    for (std::uint64_t offset = 0; offset < bytes;) {
      const auto bucket = bucket_of[piece];
      const bool fits = !chunks.empty() && chunks.back().bucket == bucket &&
                        chunks.back().bytes + std::min(bytes, chunk_bytes) <= chunk_bytes;
      if (!fits) chunks.push_back({bucket, 0, {}});
      auto& chunk = chunks.back();
      const auto length = std::min(chunk_bytes - chunk.bytes, bytes - offset);
      chunk.spans.push_back({piece, file, offset, begin + offset, length, offset + length == bytes});
      chunk.bytes += length;
      offset += length;
    }
  }
  return chunks;
}

}  // namespace troupe::actors
