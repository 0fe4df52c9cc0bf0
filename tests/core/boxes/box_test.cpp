#include "core/boxes/box.hpp"
#include "core/element_range.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace troupe::core {
namespace {

/// The position of every element of a box in its tensor, in the order of the box.
std::vector<std::int64_t> positions(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> found{0};
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    std::vector<std::int64_t> next;
    for (std::int64_t before : found) {
      for (std::int64_t i = 0; i < box.extent[axis]; ++i) {
        next.push_back(before * shape[axis] + box.offset[axis] + i);
      }
    }
    found = std::move(next);
  }
  return found;
}

Shape any_box_shape() {
  auto axes = *rc::gen::inRange(0, 5);
  Shape shape;
  for (int i = 0; i < axes; ++i) shape.push_back(*rc::gen::inRange<std::int64_t>(1, 6));
  return shape;
}

Box any_box(const Shape& shape) {
  Box box;
  for (std::int64_t extent : shape) {
    box.offset.push_back(*rc::gen::inRange<std::int64_t>(0, extent));
    box.extent.push_back(*rc::gen::inRange<std::int64_t>(1, extent - box.offset.back() + 1));
  }
  return box;
}

TEST(Box, SplitsFlatMatrixRangesIntoHeadRowsAndTail) {
  auto boxes = boxes_of_range({5, 4}, {2, 15});

  std::vector<Box> expected{{{0, 2}, {1, 2}}, {{1, 0}, {2, 4}}, {{3, 0}, {1, 3}}};
  EXPECT_EQ(boxes, expected);
}

TEST(Box, GivesAScalarOneBoxWithoutAxes) {
  EXPECT_EQ(boxes_of_range({}, {0, 1}), std::vector<Box>{Box{}});
  EXPECT_TRUE(boxes_of_range({}, {0, 0}).empty());
}

RC_GTEST_PROP(Box, CoversEveryFlatRangeInOrderWithFewBoxes, ()) {
  auto shape = any_box_shape();
  auto elements = elements_of(shape);
  auto start = *rc::gen::inRange<std::int64_t>(0, elements);
  auto end = *rc::gen::inRange<std::int64_t>(start, elements + 1);

  auto boxes = boxes_of_range(shape, {start, end});

  std::vector<std::int64_t> covered;
  for (const auto& box : boxes) {
    auto part = positions(shape, box);
    covered.insert(covered.end(), part.begin(), part.end());
  }
  std::vector<std::int64_t> expected(static_cast<std::size_t>(end - start));
  std::iota(expected.begin(), expected.end(), start);
  RC_ASSERT(covered == expected);
  RC_ASSERT(boxes.size() <= std::max<std::size_t>(1, 2 * shape.size() - 1));
}

RC_GTEST_PROP(Box, IntersectsAsTheSetsOfTheirElementsDo, ()) {
  auto shape = any_box_shape();
  auto a = any_box(shape);
  auto b = any_box(shape);

  auto common = intersection(a, b);

  auto in_a = positions(shape, a);
  auto in_b = positions(shape, b);
  std::vector<std::int64_t> expected;
  std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(expected));
  RC_ASSERT(common.has_value() == !expected.empty());
  if (common) RC_ASSERT(positions(shape, *common) == expected);
}

RC_GTEST_PROP(Box, CopiesARegionElementByElement, ()) {
  auto shape = any_box_shape();
  auto source = any_box(shape);
  auto target = any_box(shape);
  auto common = intersection(source, target);
  RC_PRE(common.has_value());
  auto memory = positions(shape, source);
  std::vector<std::int64_t> copied(static_cast<std::size_t>(target.elements()), -1);

  for (const auto& run : copy_runs(source, target, *common)) {
    std::copy_n(memory.begin() + run.from, run.elements, copied.begin() + run.to);
  }

  auto wanted = positions(shape, target);
  auto inside = positions(shape, *common);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    bool in_region = std::binary_search(inside.begin(), inside.end(), wanted[i]);
    RC_ASSERT(copied[i] == (in_region ? wanted[i] : -1));
  }
}

TEST(Box, CopiesWholeRowsInOneRun) {
  Box source{{2, 0}, {4, 8}};
  Box target{{0, 0}, {8, 8}};

  auto runs = copy_runs(source, target, source);

  EXPECT_EQ(runs, (std::vector<CopyRun>{{0, 16, 32}}));
}

RC_GTEST_PROP(BoxIndex, FindsWhatComparingAllPairsFinds, ()) {
  auto shape = any_box_shape();
  std::vector<Box> boxes;
  for (auto count = *rc::gen::inRange(0, 20); count > 0; --count) boxes.push_back(any_box(shape));
  auto wanted = any_box(shape);

  auto found = BoxIndex(boxes).touching(wanted);

  std::vector<std::size_t> expected;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (intersection(boxes[i], wanted)) expected.push_back(i);
  }
  RC_ASSERT(found == expected);
}

// Covers uneven-7.
TEST(ExactCover, AcceptsAPartitionWithEmptyBoxes) {
  std::vector<Box> boxes{{{0, 0}, {2, 3}}, {{2, 0}, {0, 3}}, {{2, 0}, {1, 3}}};

  EXPECT_TRUE(check_exact_cover({3, 3}, boxes).has_value());
}

TEST(ExactCover, NamesTwoBoxesThatOverlap) {
  std::vector<Box> boxes{{{0, 0}, {2, 3}}, {{1, 0}, {2, 3}}};

  auto result = check_exact_cover({3, 3}, boxes);

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message,
            "Invalid access pattern: [0:2, 0:3] and [1:3, 0:3] of a tensor of shape (3, 3) overlap");
}

TEST(ExactCover, CountsWhatIsMissing) {
  std::vector<Box> boxes{{{0, 0}, {2, 3}}};

  auto result = check_exact_cover({3, 3}, boxes);

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message,
            "Invalid access pattern: 6 of 9 elements of a tensor of shape (3, 3) are covered by 1 boxes");
}

TEST(ExactCover, RefusesABoxBeyondTheTensor) {
  std::vector<Box> boxes{{{0, 0}, {4, 3}}};

  auto result = check_exact_cover({3, 3}, boxes);

  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, testing::HasSubstr("[0:4, 0:3] does not lie in"));
}

TEST(ExactCover, RefusesABoxWhoseEndIsNoNumber) {
  const Box box{{std::int64_t{1} << 62}, {std::int64_t{1} << 62}};

  const auto good = check_exact_cover({4}, std::vector<const Box*>{&box});

  ASSERT_FALSE(good);
  EXPECT_THAT(good.error().message,
              testing::HasSubstr("[4611686018427387904:4611686018427387904+4611686018427387904]"));
}

TEST(Shape, RefusesWhatCannotBeCounted) {
  EXPECT_FALSE(check_shape({-1, 3}));
  EXPECT_FALSE(check_shape({std::int64_t{1} << 40, std::int64_t{1} << 40}));
  EXPECT_TRUE(check_shape({0, std::int64_t{1} << 40}));
  EXPECT_EQ(elements_of({}), 1);
}

}  // namespace
}  // namespace troupe::core
