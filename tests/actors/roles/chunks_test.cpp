#include "actors/roles/chunks.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace troupe::actors {
namespace {

/// Pieces of which each is a tensor of its own, but for some that are second parts and go to a second file.
struct Pieces {
  core::SaveStructure structure;
  std::vector<std::uint32_t> assigned;
  std::vector<core::BucketIndex> bucket_of;
  std::vector<core::PlannedFile> files;
};

Pieces any_pieces() {
  Pieces pieces;
  std::uint32_t bucket = 0;
  const auto count = *rc::gen::inRange(0, 8);
  for (int i = 0; i < count; ++i) {
    const std::int64_t elements = *rc::gen::inRange(1, 20);
    const bool in_two = *rc::gen::inRange(0, 3) == 0;
    const auto tensor = static_cast<std::uint32_t>(pieces.structure.tensors.size());
    pieces.structure.tensors.push_back(
        {"t" + std::to_string(i), core::DType::bf16, {in_two ? 2 * elements : elements}});
    for (int part = 0; part < (in_two ? 2 : 1); ++part) {
      const auto piece = static_cast<std::uint32_t>(pieces.structure.pieces.size());
      pieces.structure.pieces.push_back({tensor, {{part * elements}, {elements}}});
      pieces.bucket_of.push_back({bucket});
      if (*rc::gen::inRange(0, 4) != 0) pieces.assigned.push_back(piece);
    }
    bucket += *rc::gen::inRange(0, 2);
  }
  pieces.files = core::plan_files(pieces.structure, pieces.assigned, core::Rank{0});
  return pieces;
}

RC_GTEST_PROP(SaveChunks, CoverEveryPlannedByteOnceInFileOrder, ()) {
  const auto pieces = any_pieces();
  const auto limit = *rc::gen::inRange<std::uint64_t>(1, 64);

  const auto chunks = chunks_of(pieces.structure, pieces.files, pieces.bucket_of, limit);

  std::vector<std::uint64_t> position;
  for (const auto& file : pieces.files) position.push_back(file.header.size());
  std::uint32_t last_piece = 0;
  for (const auto& chunk : chunks) {
    std::uint64_t bytes = 0;
    for (const auto& span : chunk.spans) {
      const auto& shards = pieces.files[span.file].shards;
      const auto shard =
          std::find_if(shards.begin(), shards.end(), [&](const auto& s) { return s.piece == span.piece; });
      RC_ASSERT(shard != shards.end());
      RC_ASSERT(span.bytes > 0u);
      RC_ASSERT(pieces.bucket_of[span.piece] == chunk.bucket);
      RC_ASSERT(span.piece >= last_piece);
      RC_ASSERT(shard->begin + span.offset == position[span.file]);
      RC_ASSERT(span.place == position[span.file]);
      position[span.file] += span.bytes;
      RC_ASSERT(span.ends_piece == (position[span.file] == shard->end));
      bytes += span.bytes;
      last_piece = span.piece;
    }
    RC_ASSERT(bytes == chunk.bytes);
    RC_ASSERT(bytes <= limit);
    RC_ASSERT(bytes > 0u);
  }
  for (std::size_t file = 0; file < pieces.files.size(); ++file)
    RC_ASSERT(position[file] == pieces.files[file].bytes());
}

TEST(SaveChunks, CutAPieceOnlyWhenItDoesNotFit) {
  core::SaveStructure structure;
  structure.tensors = {
      {"a", core::DType::f32, {3}}, {"b", core::DType::f32, {3}}, {"c", core::DType::f32, {9}}};
  structure.pieces = {{0, core::Box::whole({3})}, {1, core::Box::whole({3})}, {2, core::Box::whole({9})}};
  const auto files = core::plan_files(structure, std::vector<std::uint32_t>{0, 1, 2}, core::Rank{0});

  const auto chunks = chunks_of(structure, files, std::vector<core::BucketIndex>(3), 20);

  ASSERT_EQ(chunks.size(), 4u);
  const auto header = files[0].header.size();
  EXPECT_EQ(chunks[0], (SaveChunk{0, 12, {{0, 0, 0, header, 12, true}}}));
  EXPECT_EQ(chunks[1], (SaveChunk{0, 12, {{1, 0, 0, header + 12, 12, true}}}));
  EXPECT_EQ(chunks[2], (SaveChunk{0, 20, {{2, 0, 0, header + 24, 20, false}}}));
  EXPECT_EQ(chunks[3], (SaveChunk{0, 16, {{2, 0, 20, header + 44, 16, true}}}));
}

RC_GTEST_PROP(StagingBuffers, HoldAnyChunkOfAnySaveWithinTheirBudget, ()) {
  const auto pieces = any_pieces();
  const auto limit = *rc::gen::inRange<std::uint64_t>(1, 64);
  const auto budget = *rc::gen::inRange<std::uint64_t>(limit, 256);

  const auto buffers = staging_buffers(pieces.structure, pieces.bucket_of, limit, budget);

  RC_ASSERT(!buffers.empty());
  RC_ASSERT(std::is_sorted(buffers.begin(), buffers.end()));
  RC_ASSERT(std::accumulate(buffers.begin(), buffers.end(), std::uint64_t{0}) <= budget);
  for (const auto& chunk : chunks_of(pieces.structure, pieces.files, pieces.bucket_of, limit))
    RC_ASSERT(chunk.bytes <= buffers.back());
}

/// A large bucket and twenty small ones, none of which fills a chunk.
TEST(StagingBuffers, AreNoLargerThanTheState) {
  core::SaveStructure structure;
  std::vector<core::BucketIndex> bucket_of;
  for (std::uint32_t t = 0; t < 21; ++t) {
    const std::int64_t elements = t == 0 ? 100 : 2;
    structure.tensors.push_back({"t" + std::to_string(t), core::DType::f32, {elements}});
    structure.pieces.push_back({t, core::Box::whole({elements})});
    bucket_of.push_back({t});
  }

  const auto buffers = staging_buffers(structure, bucket_of, 256, 1 << 20);

  ASSERT_EQ(buffers.size(), 22u);
  EXPECT_TRUE(std::all_of(buffers.begin(), buffers.begin() + 20, [](auto bytes) { return bytes == 8; }));
  EXPECT_EQ(buffers[20], 144u);
  EXPECT_EQ(buffers[21], 256u);
  EXPECT_EQ(staging_buffers(structure, bucket_of, 256, 450),
            (std::vector<std::uint64_t>{8, 8, 8, 8, 8, 8, 144, 256}));
}

TEST(SaveChunks, AreNoneWithoutPieces) {
  EXPECT_TRUE(chunks_of({}, {}, {}, 16).empty());
}

}  // namespace
}  // namespace troupe::actors
