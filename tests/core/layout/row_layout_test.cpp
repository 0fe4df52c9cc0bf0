#include "core/layout/row_layout.hpp"
#include "tests/support/words.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <numeric>

namespace troupe::core {
namespace {

using Shapes = std::vector<std::vector<std::int64_t>>;
using Offsets = std::vector<std::int64_t>;

struct Reference {
  Shapes shapes;
  int shards;
  Offsets offsets;
  std::int64_t elements;

  friend std::ostream& operator<<(std::ostream& out, const Reference& of) {
    return out << testing::PrintToString(of.shapes) << " on " << of.shards;
  }
};

class ReferenceRowLayout : public testing::TestWithParam<Reference> {};

// Covers unit-1.
TEST_P(ReferenceRowLayout, HasTheseOffsetsAndThisSize) {
  const auto& test = GetParam();

  const auto layout = row_aligned_layout(test.shapes, test.shards).value();

  EXPECT_EQ(layout.offsets, test.offsets);
  EXPECT_EQ(layout.elements, test.elements);
}

/// The shapes and shards, as the name of a test.
std::string shapes_of(const testing::TestParamInfo<Reference>& test) {
  return tests::words_of(testing::PrintToString(test.param));
}

INSTANTIATE_TEST_SUITE_P(Cases, ReferenceRowLayout,
                         testing::Values(Reference{{{5, 4}, {2, 6}, {3}}, 2, {0, 24, 20}, 48},
                                         Reference{{{4, 4}, {1, 6}}, 2, {0, 18}, 24},
                                         Reference{{{16, 8}, {16}}, 2, {0, 128}, 144},
                                         Reference{{{4, 16}, {4}}, 2, {0, 64}, 96},
                                         Reference{{{8, 4}}, 8, {0}, 32}),
                         shapes_of);

// Covers unit-1.
TEST(RowLayout, AWeightAndItsBiasAreCutBetweenRows) {
  const auto layout = row_aligned_layout({{16, 8}, {16}}, 2).value();

  EXPECT_EQ(local_rows(layout, 0, 0), (ElementRange{0, 9}));
  EXPECT_EQ(local_rows(layout, 0, 1), (ElementRange{9, 16}));
  EXPECT_EQ(local_rows(layout, 1, 0).size(), 0);
  EXPECT_EQ(local_rows(layout, 1, 1), (ElementRange{0, 16}));
}

// Covers unit-1.
TEST(RowLayout, RemaindersOfTwoTensorsShareOneChunk) {
  // The chunk is 12. The first leaves a gap of 8 behind 16; the third's head of 8 fills its end.
  const auto layout = row_aligned_layout({{4, 4}, {4, 6}, {5, 4}}, 1).value();

  EXPECT_EQ(layout.offsets, (Offsets{0, 36, 16}));
  EXPECT_EQ(layout.elements, 60);
}

TEST(RowLayout, BadShapesAreErrorsThatNameTheTensor) {
  EXPECT_NE(row_aligned_layout({{2}, {}}, 2).error().message.find("tensor 1 has no dimension"),
            std::string::npos);
  EXPECT_NE(row_aligned_layout({{2, 0}}, 2).error().message.find("shape 2x0 is empty"), std::string::npos);
  EXPECT_FALSE(row_aligned_layout({{2, 2}}, 0));
  EXPECT_FALSE(row_aligned_layout({{1, 1'000'003}, {1, 1'000'033}, {1, 1'000'037}}, 2));
  EXPECT_FALSE(row_aligned_layout({{1LL << 40, 1LL << 40}}, 2));
}

RC_GTEST_PROP(RowLayout, EveryRowHasOneOwnerWithoutOverlap, ()) {
  const int shards = *rc::gen::inRange(1, 9);
  const auto shapes = *rc::gen::container<Shapes>(rc::gen::resize(
      3, rc::gen::nonEmpty(
             rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 8)))));

  const auto layout = row_aligned_layout(shapes, shards).value();

  std::vector<int> owners(static_cast<std::size_t>(layout.elements));
  for (std::size_t tensor = 0; tensor < shapes.size(); ++tensor) {
    const std::int64_t row = std::accumulate(shapes[tensor].begin() + 1, shapes[tensor].end(),
                                             std::int64_t{1}, std::multiplies<>{});
    RC_ASSERT(layout.offsets[tensor] % row == 0);
    std::int64_t next = 0;
    for (int shard = 0; shard < shards; ++shard) {
      const ElementRange rows = local_rows(layout, static_cast<int>(tensor), shard);
      const std::int64_t size = layout.elements / shards;
      RC_ASSERT(rows.start == next || rows.size() == 0);
      next = std::max(next, rows.end);
      for (std::int64_t i = rows.start * row; i < rows.end * row; ++i) {
        const std::int64_t position = layout.offsets[tensor] + i;
        RC_ASSERT(position / size == shard);
        ++owners[static_cast<std::size_t>(position)];
      }
    }
    RC_ASSERT(next == shapes[tensor][0]);
  }
  for (const int count : owners) RC_ASSERT(count <= 1);
}

}  // namespace
}  // namespace troupe::core
