#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/boxes/box.hpp"
#include "tests/core/checkpoint/saved_job.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(const Shape& shape, const std::vector<Box>& boxes) {
  const auto good = check_exact_cover(shape, boxes);
  return good ? "no error" : good.error().message;
}

/// All pairs and a sum: slow, and plainly right.
bool covers_by_pairs(const Shape& shape, const std::vector<Box>& boxes) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    elements += boxes[i].elements();
    for (std::size_t j = 0; j < i; ++j) {
      if (intersection(boxes[i], boxes[j])) return false;
    }
  }
  return elements == elements_of(shape);
}

/// A grid of boxes with two elements along each axis.
std::vector<Box> grid(const Shape& counts) {
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < elements_of(counts); ++i) {
    Box box{Shape(counts.size()), Shape(counts.size(), 2)};
    auto rest = i;
    for (std::size_t axis = counts.size(); axis-- > 0; rest /= counts[axis])
      box.offset[axis] = 2 * (rest % counts[axis]);
    boxes.push_back(box);
  }
  return boxes;
}

/// Cuts boxes in two again and again, which keeps a cover exact.
std::vector<Box> any_partition(const Shape& shape) {
  std::vector<Box> boxes{Box::whole(shape)};
  for (auto cuts = between(0, 12); cuts > 0 && !shape.empty(); --cuts) {
    auto& box = boxes[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(boxes.size()) - 1))];
    const auto axis = static_cast<std::size_t>(between(0, static_cast<std::int64_t>(shape.size()) - 1));
    const auto at = between(0, box.extent[axis]);
    Box rest = box;
    rest.offset[axis] += at;
    rest.extent[axis] -= at;
    box.extent[axis] = at;
    boxes.push_back(rest);
  }
  return boxes;
}

/// Moves an edge of one of the boxes, inside the tensor.
void move_an_edge(const Shape& shape, Box& box) {
  if (shape.empty()) return;
  const auto axis = static_cast<std::size_t>(between(0, static_cast<std::int64_t>(shape.size()) - 1));
  box.offset[axis] = between(0, shape[axis]);
  box.extent[axis] = between(0, shape[axis] - box.offset[axis]);
}

RC_GTEST_PROP(ExactCover, IsSeenInEveryPartition, ()) {
  const auto shape = any_shape();

  const auto good = check_exact_cover(shape, any_partition(shape));

  RC_ASSERT(good.has_value());
}

RC_GTEST_PROP(ExactCover, IsWhatComparingAllPairsFinds, ()) {
  const auto shape = any_shape();
  auto boxes = any_partition(shape);
  for (auto moves = between(1, 2); moves > 0; --moves)
    move_an_edge(shape,
                 boxes[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(boxes.size()) - 1))]);

  const auto good = check_exact_cover(shape, boxes);

  RC_ASSERT(good.has_value() == covers_by_pairs(shape, boxes));
  if (!good) RC_ASSERT(good.error().message.starts_with("Invalid access pattern: "));
}

TEST(ExactCover, NamesAMissingElementWhereTheSumIsRight) {
  EXPECT_EQ(refusal({4, 2}, {{{0, 0}, {1, 2}}, {{2, 0}, {2, 2}}, {{3, 0}, {1, 2}}}),
            "Invalid access pattern: no box has the element (1, 0) of a tensor of shape (4, 2)");
}

TEST(ExactCover, NamesTheFirstTwoBoxesSharingAnElement) {
  EXPECT_EQ(refusal({6}, {{{3}, {3}}, {{0}, {3}}, {{2}, {2}}, {{5}, {1}}}),
            "Invalid access pattern: [0:3] and [2:4] of a tensor of shape (6) overlap");
}

TEST(ExactCover, TakesScalarsAndTensorsWithoutElements) {
  EXPECT_EQ(refusal({}, {Box{}}), "no error");
  EXPECT_EQ(refusal({}, {}),
            "Invalid access pattern: 0 of 1 elements of a tensor of shape () are covered by 0 boxes");
  EXPECT_EQ(refusal({}, {Box{}, Box{}}), "Invalid access pattern: [] and [] of a tensor of shape () overlap");
  EXPECT_EQ(refusal({3, 0}, {}), "no error");
  EXPECT_EQ(refusal({3, 0}, {{{1, 0}, {2, 0}}}), "no error");
}

TEST(ExactCover, TakesTensorsOfTheLargestSizes) {
  const std::int64_t half = std::int64_t{1} << 61;
  const Shape many(62, 2);
  std::vector<Box> halves(2, Box::whole(many));
  halves[0].extent[61] = 1;
  halves[1].extent[61] = 1;
  halves[1].offset[61] = 1;

  EXPECT_EQ(refusal({2 * half}, {{{0}, {half}}, {{half}, {half}}}), "no error");
  EXPECT_THAT(refusal({2 * half}, std::vector<Box>(9, Box{{0}, {2 * half}})), HasSubstr("overlap"));
  EXPECT_EQ(refusal(many, halves), "no error");
}

TEST(ExactCover, TakesManyBoxesCutAlongManyAxes) {
  auto boxes = grid({7, 7, 7, 7, 7});
  const Shape shape(5, 14);

  EXPECT_EQ(refusal(shape, boxes), "no error");
  boxes.pop_back();
  EXPECT_THAT(refusal(shape, boxes), StartsWith("Invalid access pattern: 537792 of 537824 elements"));
}

TEST(ExactCover, RefusesMoreCornersThanCanBeChecked) {
  const auto halves = [](std::size_t axes) {
    return std::vector<Box>{{Shape(axes, 0), Shape(axes, 1)}, {Shape(axes, 1), Shape(axes, 1)}};
  };

  EXPECT_THAT(refusal(Shape(10, 2), halves(10)), HasSubstr("2 of 1024 elements"));
  EXPECT_THAT(refusal(Shape(11, 2), halves(11)),
              HasSubstr("is cut along 11 axes into 2 boxes, which have too many corners to check"));
}

}  // namespace
}  // namespace troupe::core
