#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/boxes/box.hpp"
#include "core/boxes/sharded_tensor.hpp"
#include "tests/support/words.hpp"

namespace troupe::core {
namespace {

/// A part with its elements.
struct Part {
  Box box;
  std::vector<std::int64_t> values;
};

/// What a reader of `box` gets from the stored parts; 0 where there is nothing.
std::vector<std::int64_t> read(const std::vector<Part>& stored, const Box& box) {
  std::vector<Box> boxes;
  for (const Part& part : stored) boxes.push_back(part.box);
  const BoxIndex index(boxes);
  std::vector<std::int64_t> values(static_cast<std::size_t>(box.elements()));
  for (const std::size_t at : index.touching(box)) {
    const Box region = intersection(stored[at].box, box).value();
    for (const auto& run : copy_runs(stored[at].box, box, region)) {
      std::copy_n(stored[at].values.begin() + run.from, run.elements, values.begin() + run.to);
    }
  }
  return values;
}

/// The elements of a tensor that counts up in row-major order.
Part counted(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(elements_of(shape)));
  std::iota(all.begin(), all.end(), 0);
  return {box, read({{Box::whole(shape), all}}, box)};
}

/// Lengths of the parts, per rank.
using Split = std::vector<std::vector<std::int64_t>>;

/// The boxes of a split, rank after rank.
std::vector<std::vector<Box>> boxes_of(const Split& split) {
  std::vector<std::vector<Box>> boxes;
  std::int64_t begin = 0;
  for (const auto& lengths : split) {
    boxes.emplace_back();
    for (const std::int64_t length : lengths) {
      boxes.back().push_back({{begin}, {length}});
      begin += length;
    }
  }
  return boxes;
}

std::int64_t total(const Split& split) {
  std::int64_t sum = 0;
  for (const auto& lengths : split) sum = std::accumulate(lengths.begin(), lengths.end(), sum);
  return sum;
}

Split one_each(const std::vector<std::int64_t>& lengths) {
  Split split;
  for (const std::int64_t length : lengths) split.push_back({length});
  return split;
}

struct Reshard {
  Split source;
  Split destination;

  friend std::ostream& operator<<(std::ostream& out, const Reshard& of) {
    return out << testing::PrintToString(of.source) << " to " << testing::PrintToString(of.destination);
  }
};

class UnevenSharding : public testing::TestWithParam<Reshard> {};

// The stored tensor holds, at every element, the number of the rank that will read it.
// Covers uneven-2, save-6, stored-14, stored-15.
TEST_P(UnevenSharding, EveryRankReceivesItsOwnNumber) {
  const auto& [source, destination] = GetParam();
  ASSERT_EQ(total(source), total(destination));
  const auto readers = boxes_of(destination);
  std::vector<std::int64_t> tensor;
  for (std::size_t rank = 0; rank < readers.size(); ++rank) {
    for (const Box& box : readers[rank]) {
      tensor.insert(tensor.end(), static_cast<std::size_t>(box.elements()),
                    static_cast<std::int64_t>(rank + 1));
    }
  }
  std::vector<Part> stored;
  std::vector<Box> written;
  for (const auto& boxes : boxes_of(source)) {
    for (const Box& box : boxes) {
      const auto first = tensor.begin() + box.offset[0];
      stored.push_back({box, {first, first + box.extent[0]}});
      written.push_back(box);
    }
  }

  EXPECT_TRUE(check_exact_cover({total(source)}, written));
  for (std::size_t rank = 0; rank < readers.size(); ++rank) {
    for (const Box& box : readers[rank]) {
      EXPECT_THAT(read(stored, box), testing::Each(static_cast<std::int64_t>(rank + 1)));
    }
  }
}

const std::vector<std::int64_t> kMixed{1, 5, 7, 3, 6, 2, 5, 4};
const Split kSeveral{{4}, {7, 8}, {1, 1, 1, 1, 1}, {3, 3}};

/// The lengths of all parts before and after, as the name of a test.
std::string lengths_of(const testing::TestParamInfo<Reshard>& test) {
  return tests::words_of(testing::PrintToString(test.param));
}

INSTANTIATE_TEST_SUITE_P(
    OnePartARank, UnevenSharding,
    testing::Values(Reshard{one_each({3, 3, 3, 3, 3, 3, 3, 3}), one_each({3, 3, 3, 3, 3, 3, 3, 3})},
                    Reshard{one_each({1, 2, 3, 4, 5, 6, 7, 8}), one_each({1, 2, 3, 4, 5, 6, 7, 8})},
                    Reshard{one_each(kMixed), one_each(kMixed)},
                    Reshard{one_each({2, 2, 2, 2, 2, 2, 2, 1}), one_each({2, 2, 2, 2, 2, 2, 2, 1})},
                    Reshard{one_each({2, 2, 2, 2, 2, 2, 2, 10}), one_each({2, 2, 2, 2, 2, 2, 2, 10})},
                    Reshard{one_each({3, 3, 3, 3, 3, 3, 3, 3}), one_each({1, 1, 1, 1, 1, 1, 2, 16})},
                    Reshard{one_each(kMixed), one_each({14, 3, 6, 3, 1, 1, 2, 3})},
                    Reshard{one_each({5, 5, 5, 5, 5, 5, 0, 0}), one_each({5, 0, 5, 0, 5, 5, 3, 7})},
                    Reshard{one_each({15, 0, 0, 0, 0, 0, 0, 0}), one_each({0, 0, 0, 3, 3, 3, 3, 3})}),
    lengths_of);

INSTANTIATE_TEST_SUITE_P(
    SeveralPartsARank, UnevenSharding,
    testing::Values(Reshard{one_each({3, 3, 3, 3, 3, 3, 3, 3}), one_each({3, 3, 3, 3, 3, 3, 3, 3})},
                    Reshard{{{}, {}, {}, {}, {}, {}, {}, {3, 3}}, {{}, {}, {}, {}, {}, {}, {}, {3, 3}}},
                    Reshard{kSeveral, kSeveral},
                    Reshard{one_each({2, 2, 2, 2, 2, 10, 10, 10}), one_each({10, 10, 10, 2, 2, 2, 2, 2})},
                    Reshard{kSeveral, {{2, 4}, {}, {5}, {}, {5, 9}, {}, {1, 1, 1, 1, 1}, {}}},
                    Reshard{one_each({3, 3, 3, 3, 3, 3, 3, 3}),
                            {{2, 4}, {2, 4}, {2, 4}, {2, 4}, {}, {}, {}, {}}}),
    lengths_of);

/// A stored tensor (2, 32) that counts up, and readers of four pieces of its columns.
std::vector<std::int64_t> column_piece(std::int64_t columns, std::int64_t piece) {
  const std::vector<Part> stored{counted({2, 32}, {{0, 0}, {2, 16}}), counted({2, 32}, {{0, 16}, {2, 16}})};
  return read(stored, {{0, piece * columns}, {2, columns}});
}

// Covers stored-10.
TEST(ShapeMismatch, ASmallerRequestLeavesTheRestOut) {
  for (std::int64_t piece = 0; piece < 4; ++piece) {
    std::vector<std::int64_t> expected;
    for (std::int64_t column = 7 * piece; column <= 7 * piece + 6; ++column) expected.push_back(column);
    for (std::int64_t column = 7 * piece; column <= 7 * piece + 6; ++column) expected.push_back(32 + column);

    EXPECT_EQ(column_piece(7, piece), expected);
  }
}

// Covers stored-10.
TEST(ShapeMismatch, ALargerRequestIsZeroBeyondTheStoredTensor) {
  EXPECT_EQ(column_piece(9, 2), (std::vector<std::int64_t>{18, 19, 20, 21, 22, 23, 24, 25, 26, 50, 51, 52, 53,
                                                           54, 55, 56, 57, 58}));
  EXPECT_EQ(column_piece(9, 3),
            (std::vector<std::int64_t>{27, 28, 29, 30, 31, 0, 0, 0, 0, 59, 60, 61, 62, 63, 0, 0, 0, 0}));
}

ShardedTensor request(Shape shape, const std::vector<RankOffset>& offsets, std::int64_t prepended = 0) {
  return ShardedTensor::from_rank_offsets("keyB", DType::i64, std::move(shape), offsets,
                                          {.prepend_axis_num = prepended})
      .value();
}

// Covers uneven-3, stored-5.
TEST(Resharding, ReadsATwoAxisPartitionWholeAndByRows) {
  std::vector<Part> stored;
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t column = 0; column < 4; ++column) {
      stored.push_back(counted({2, 4}, request({1, 1}, {{0, row, 2}, {1, column, 4}}).box()));
    }
  }

  EXPECT_EQ(read(stored, request({2, 4}, {}).box()), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(read(stored, request({2, 1}, {{1, 2, 4}}).box()), (std::vector<std::int64_t>{2, 6}));
  EXPECT_EQ(read(stored, request({1, 4}, {{0, 1, 2}}).box()), (std::vector<std::int64_t>{4, 5, 6, 7}));
}

// Covers stored-5.
TEST(Resharding, ReadsATensorAsSlicesOfAPrependedAxis) {
  const Shape shape{4, 5, 80};
  const std::vector<Part> whole{counted(shape, request({4, 5, 80}, {}).box())};
  std::vector<Part> slices;
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    const ShardedTensor slice = request({5, 80}, {{0, layer, 4}}, 1);
    slices.push_back({slice.box(), read(whole, slice.box())});

    EXPECT_EQ(slice.global_shape, shape);
    EXPECT_EQ(slices.back().values.size(), 400U);
    EXPECT_EQ(slices.back().values.front(), 400 * layer);
    EXPECT_EQ(slices.back().values.back(), 400 * layer + 399);
  }

  EXPECT_EQ(read(slices, whole[0].box), whole[0].values);
}

}  // namespace
}  // namespace troupe::core
