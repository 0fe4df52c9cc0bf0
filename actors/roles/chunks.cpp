#include "actors/roles/chunks.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

namespace troupe::actors {

namespace {

/// Two blocks, so that memory can be aligned to blocks in the same way as the place in the file.
constexpr std::uint64_t kSlack = 8192;
/// A chunk below this size is not worth aligning.
constexpr std::uint64_t kAlignedChunk = std::uint64_t{1} << 20;

}  // namespace

std::uint64_t staging_slack(std::uint64_t chunk_bytes) {
  return chunk_bytes >= kAlignedChunk ? kSlack : 0;
}

std::vector<SaveChunk> chunks_of(const core::SaveStructure& structure,
                                 std::span<const core::PlannedFile> files,
                                 std::span<const core::BucketIndex> bucket_of, std::uint64_t chunk_bytes) {
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

std::vector<std::uint64_t> staging_buffers(const core::SaveStructure& structure,
                                           std::span<const core::BucketIndex> bucket_of,
                                           std::uint64_t chunk_bytes, std::uint64_t staging_bytes) {
  std::vector<std::uint32_t> all(structure.pieces.size());
  std::iota(all.begin(), all.end(), 0U);
  std::vector<std::uint64_t> sizes;
  std::map<core::BucketIndex, std::uint64_t> buckets;
  const auto files = core::plan_files(structure, all, core::Rank{0});
  for (const auto& chunk : chunks_of(structure, files, bucket_of, chunk_bytes)) {
    sizes.push_back(chunk.bytes);
    buckets[chunk.bucket] += chunk.bytes;
  }
  if (sizes.empty()) return {1};
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  // A save of some pieces may have a larger chunk than any in a save of all.
  for (const auto& [bucket, bytes] : buckets) sizes[0] = std::max(sizes[0], std::min(bytes, chunk_bytes));
  std::size_t count = 0;
  for (std::uint64_t taken = 0; count < sizes.size(); ++count) {
    taken += sizes[count] + staging_slack(sizes[count]);
    if (taken > staging_bytes) break;
  }
  sizes.resize(std::max<std::size_t>(count, 1));
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace troupe::actors
