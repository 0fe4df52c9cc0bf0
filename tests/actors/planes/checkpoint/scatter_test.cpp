#include "actors/planes/checkpoint/scatter.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using core::Box;
using core::DType;

/// Rows 2 to 5 of a matrix (8, 131072) in bf16, which is 256 KiB per row.
struct LongRows {
  core::ManifestTensor tensor{"a", DType::bf16, {8, 131072}, {}};
  core::ManifestShard shard{{{2, 0}, {4, 131072}}, 0, 100, 100 + 4 * 262144, 0};
  std::vector<std::byte> memory = std::vector<std::byte>(8 * 262144);

  std::vector<StraightRun> runs(const core::LoadTarget& target) {
    core::LoadRead read{&tensor, &shard, {}};
    const auto region = core::intersection(shard.box, target.box).value();
    read.copies.push_back({0, region});
    const std::vector<core::LoadTarget> targets{target};
    const auto bytes = static_cast<std::size_t>(target.box.elements()) * core::size_of(target.dtype);
    const std::vector<std::span<std::byte>> places{std::span(memory).first(bytes)};
    return straight_runs(read, targets, places);
  }
};

TEST(StraightRuns, ExistWhereATargetHoldsWholeStoredRows) {
  LongRows rows;

  const auto runs = rows.runs({"a", DType::bf16, {8, 131072}, {{1, 0}, {3, 131072}}, false});

  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].begin, 0U);  // of the shard: row 2
  EXPECT_EQ(runs[0].memory.data(), rows.memory.data() + 262144);
  EXPECT_EQ(runs[0].memory.size(), 2 * 262144U);
}

TEST(StraightRuns, AreMissingWhereElementsAreConvertedOrStretchesShort) {
  LongRows rows;

  EXPECT_TRUE(rows.runs({"a", DType::f32, {8, 131072}, {{2, 0}, {2, 131072}}, false}).empty());
  EXPECT_TRUE(rows.runs({"a", DType::bf16, {8, 131072}, {{2, 0}, {4, 131071}}, false}).empty());
}

}  // namespace
}  // namespace troupe::actors
