#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/checkpoint/save_plan.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

/// A range of one piece.
struct ChunkSpan {
  std::uint32_t piece = 0;   ///< index in the rank's structure
  std::uint32_t file = 0;    ///< index in plan_files
  std::uint64_t offset = 0;  ///< bytes from the beginning of the piece
  std::uint64_t place = 0;   ///< bytes from the beginning of the file
  std::uint64_t bytes = 0;
  bool ends_piece = false;

  friend bool operator==(const ChunkSpan&, const ChunkSpan&) = default;
};

/// What is staged and written at once: ranges of pieces of one bucket, one after the other in a staging
/// buffer.
struct SaveChunk {
  core::BucketIndex bucket{};
  std::uint64_t bytes = 0;
  std::vector<ChunkSpan> spans;

  friend bool operator==(const SaveChunk&, const SaveChunk&) = default;
};

/// The chunks of a rank's files, in the order of the pieces; those of one file are also in its order. No
/// chunk is larger than `chunk_bytes`; pieces are cut only when necessary. `bucket_of` is per piece.
std::vector<SaveChunk> chunks_of(const core::SaveStructure& structure,
                                 std::span<const core::PlannedFile> files,
                                 std::span<const core::BucketIndex> bucket_of, std::uint64_t chunk_bytes);

/// Bytes that a staging buffer has in addition to its chunk.
std::uint64_t staging_slack(std::uint64_t chunk_bytes);

/// Sizes of the chunks that staging buffers are for, the smallest first: those of a save of everything. If
/// `staging_bytes` do not suffice for all of them with their slack, the largest are kept; at least one. The
/// last buffer holds any chunk.
std::vector<std::uint64_t> staging_buffers(const core::SaveStructure& structure,
                                           std::span<const core::BucketIndex> bucket_of,
                                           std::uint64_t chunk_bytes, std::uint64_t staging_bytes);

}  // namespace troupe::actors
