#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "gpu/kernels.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/place.hpp"

namespace troupe::gpu {
namespace {

using core::DType;

constexpr std::array kFloatingSums = {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2};
constexpr std::array kSummedTypes = {DType::f32, DType::f16, DType::bf16};

class Sums : public testing::TestWithParam<PlaceUnderTest>, protected AtPlace {
 protected:
  void SetUp() override { open(GetParam()); }

  /// Pieces of 1, 8, 64, ... elements.
  template <class Part>
  void in_pieces(std::size_t count, Part part) {
    std::size_t first = 0;
    for (std::size_t length = 1; first < count; length *= 8) {
      const std::size_t taken = std::min(length, count - first);
      part(first, taken);
      first += taken;
    }
  }
};
class TreeSums : public Sums {};
class Measure : public Sums {};

/// The sum of the tree over lanes [first, end), by its definition.
float sum_of_tree(const std::vector<float>& lanes, std::size_t first, std::size_t end) {
  std::size_t half = 1;
  if (end - first == 1) return lanes[first];
  while (2 * half < end - first) half *= 2;
  return sum_of_tree(lanes, first, first + half) + sum_of_tree(lanes, first + half, end);
}

/// Every element by its definition.
std::vector<float> sums_of_tree(const std::vector<Vector>& slots, DType to, float factor) {
  std::vector<std::vector<float>> lanes;
  for (const auto& slot : slots) lanes.push_back(slot.values());
  std::vector<float> expected(lanes[0].size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::vector<float> values;
    for (const auto& lane : lanes) values.push_back(lane[i]);
    expected[i] = rounded(to, sum_of_tree(values, 0, values.size()) * factor);
  }
  return expected;
}

TEST_P(TreeSums, GiveTheTreesBitsForAnyLanesAndDtype) {
  constexpr std::size_t kCount = 1300;
  for (const DType dtype : kSummedTypes) {
    for (const DType to : kSummedTypes) {
      for (const int lanes : {1, 2, 3, 4, 5, 8, 33, 200}) {
        if (lanes > 8 && dtype != to) continue;
        const auto split = core::split_lanes(lanes, {lanes}).value();
        const auto steps = core::finishing_program(split);
        std::vector<Vector> slots;
        for (unsigned lane = 0; lane < static_cast<unsigned>(lanes); ++lane) {
          slots.push_back(vector(dtype, mixed_numbers(kCount, 10U + lane, true)));
        }
        TreeSum sum{.slots = {}, .steps = steps, .factor = 1.0F / 3, .output = {}};
        for (auto& slot : slots) sum.slots.push_back(slot.elements());
        const auto whole = vector(to, kCount);
        const auto pieces = vector(to, kCount);

        sum.output = whole.elements();
        run([&](auto... stream) { tree_sum(sum, stream...); });
        in_pieces(kCount, [&](std::size_t first, std::size_t length) {
          TreeSum part = sum;
          part.slots = {};
          for (auto& slot : slots) part.slots.push_back(slot.elements().part(first, length));
          part.output = pieces.elements().part(first, length);
          run([&](auto... stream) { tree_sum(part, stream...); });
        });

        const auto expected = sums_of_tree(slots, to, 1.0F / 3);
        expect_same(whole, expected);
        expect_same(pieces, expected);
      }
    }
  }
}

/// More than a kernel's parameters or its fast memory hold.
TEST_P(TreeSums, TakeAnyNumberOfSlots) {
  constexpr std::size_t kCount = 70;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int lanes : {256, 257, 512, 600}) {
      const auto steps = core::finishing_program(core::split_lanes(lanes, {lanes}).value());
      std::vector<Vector> slots;
      for (unsigned lane = 0; lane < static_cast<unsigned>(lanes); ++lane)
        slots.push_back(vector(dtype, mixed_numbers(kCount, 10U + lane, true)));
      TreeSum sum{.slots = {}, .steps = steps, .factor = 1.0F / 3, .output = {}};
      for (auto& slot : slots) sum.slots.push_back(slot.elements());
      const auto expected = sums_of_tree(slots, dtype, 1.0F / 3);
      // Over the last one, which the last pass may read.
      sum.output = slots.back().elements();

      run([&](auto... stream) { tree_sum(sum, stream...); });

      expect_same(slots.back(), expected);
    }
  }
}

TEST_P(TreeSums, TakeAnyNumberOfSlotsOneAfterTheOther) {
  constexpr std::size_t kCount = 70;
  constexpr int kSlots = 600;
  std::vector<core::TreeStep> steps;
  std::vector<Vector> slots;
  TreeSum sum;
  for (int slot = 0; slot < kSlots; ++slot) {
    slots.push_back(vector(DType::f32, mixed_numbers(kCount, static_cast<unsigned>(slot), false)));
    sum.slots.push_back(slots.back().elements());
    if (slot > 0) steps.push_back({0, slot});
  }
  const auto output = vector(DType::f32, kCount);
  sum.steps = steps;
  sum.output = output.elements();

  run([&](auto... stream) { tree_sum(sum, stream...); });

  std::vector<float> expected = slots[0].values();
  for (std::size_t slot = 1; slot < kSlots; ++slot) {
    const auto values = slots[slot].values();
    for (std::size_t i = 0; i < kCount; ++i) expected[i] += values[i];
  }
  expect_same(output, expected);
}

TEST_P(TreeSums, TakeSlotsThatAreNotAlignedAlike) {
  const std::vector<core::TreeStep> steps = {{0, 1}};
  const auto numbers = vector(DType::bf16, mixed_numbers(2000, 1));
  const auto output = vector(DType::f32, 900);

  const TreeSum sum{.slots = {numbers.elements().part(3, 900), numbers.elements().part(1000, 900)},
                    .steps = steps,
                    .output = output.elements()};
  run([&](auto... stream) { tree_sum(sum, stream...); });

  const auto values = numbers.values();
  std::vector<float> expected(900);
  for (std::size_t i = 0; i < 900; ++i) expected[i] = values[3 + i] + values[1000 + i];
  expect_same(output, expected);
}

/// What a rank has summed itself is f32 beside what arrives from others.
TEST_P(TreeSums, TakeSlotsOfSeveralDtypes) {
  const std::vector<core::TreeStep> steps = {{1, 2}, {0, 1}, {3, 4}, {0, 3}};
  for (const std::size_t count : {5U, 4096U}) {
    std::vector<Vector> slots;
    unsigned seed = 1;
    for (const DType dtype : {DType::f32, DType::bf16, DType::bf16, DType::f16, DType::f32})
      slots.push_back(vector(dtype, mixed_numbers(count, seed++, true)));
    TreeSum sum{.slots = {}, .steps = steps, .factor = 0.1F, .output = slots[0].elements()};
    for (const auto& slot : slots) sum.slots.push_back(slot.elements());
    std::vector<std::vector<float>> values;
    for (const auto& slot : slots) values.push_back(slot.values());

    run([&](auto... stream) { tree_sum(sum, stream...); });

    std::vector<float> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      const float first = values[0][i] + (values[1][i] + values[2][i]);
      expected[i] = (first + (values[3][i] + values[4][i])) * 0.1F;
    }
    expect_same(slots[0], expected);
  }
}

TEST_P(TreeSums, KeepTheirSlotsAndMayWriteOverOne) {
  const std::vector<core::TreeStep> steps = {{0, 1}};
  for (const DType dtype : kSummedTypes) {
    const auto first = vector(dtype, mixed_numbers(700, 1));
    const auto second = vector(dtype, mixed_numbers(700, 2));
    const auto second_before = second.values();
    std::vector<float> expected = first.values();
    for (std::size_t i = 0; i < 700; ++i) expected[i] = rounded(dtype, expected[i] + second_before[i]);

    const TreeSum sum{
        .slots = {first.elements(), second.elements()}, .steps = steps, .output = first.elements()};
    run([&](auto... stream) { tree_sum(sum, stream...); });

    expect_same(first, expected);
    expect_same(second, second_before);
  }
}

/// The parts that arrive from the members of a group are such slots; here some come in another order.
TEST_P(TreeSums, OfEqualPartsAreThoseOfSlots) {
  constexpr std::size_t kCount = 24, kSlots = 37;
  const auto steps = core::finishing_program(core::split_lanes(kSlots, {kSlots}).value());
  for (const DType dtype : kSummedTypes) {
    const auto range = vector(dtype, mixed_numbers(kCount * kSlots, 5, true));
    const auto together = vector(dtype, kCount), apart = vector(dtype, kCount);
    Slots cut;
    cut.add(range.elements(), kSlots);
    TreeSum sum{.slots = {}, .steps = steps, .factor = 0.3F, .output = together.elements()};
    sum.slots.add(cut, 30, 7);
    sum.slots.add(cut, 0, 30);
    TreeSum each{.slots = {}, .steps = steps, .factor = 0.3F, .output = apart.elements()};
    for (std::size_t i = 0; i < kSlots; ++i)
      each.slots.push_back(range.elements().part((30 + i) % kSlots * kCount, kCount));

    run([&](auto... stream) { tree_sum(sum, stream...); });
    run([&](auto... stream) { tree_sum(each, stream...); });

    EXPECT_EQ(sum.slots.runs().size(), 2U);
    EXPECT_EQ(sum.slots.size(), kSlots);
    expect_same(together, apart.values());
  }
}

TEST_P(TreeSums, RefuseAStepToAMissingSlot) {
  // A fork would have no threads of streams.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<core::TreeStep> steps = {{0, 1}};
  const auto only = vector(DType::f32, 4);
  const TreeSum sum{.slots = {only.elements()}, .steps = steps, .output = only.elements()};
  EXPECT_DEATH(
      {
        run([&](auto... stream) { tree_sum(sum, stream...); });
        only.values();
      },
      "joins two of its slots");
}

TEST_P(Measure, SquaresAreTheHostsBitsHoweverRangesAreCut) {
  for (const DType dtype : kFloatingSums) {
    const auto values = vector(dtype, mixed_numbers(40'000, 6, true));
    const Single<core::ExactSquareSum> whole(place());
    const Single<core::ExactSquareSum> pieces(place());

    run([&](auto... stream) { add_squares(values.elements(), whole.view(), stream...); });
    in_pieces(values.count(), [&](std::size_t first, std::size_t length) {
      run([&](auto... stream) {
        add_squares(values.elements().part(first, length), pieces.view(), stream...);
      });
    });

    core::ExactSquareSum expected;
    for (const float value : values.values()) expected.accumulate({&value, 1});
    EXPECT_EQ(whole.value(), expected);
    EXPECT_EQ(pieces.value(), expected);
    EXPECT_GT(expected.nonfinite, 0);
  }
}

TEST_P(Measure, SquaresOfAllMagnitudesAreExact) {
  std::vector<float> numbers;
  for (std::uint32_t field = 0; field < 256; ++field) {
    for (const std::uint32_t mantissa : {0U, 1U, 0x40'0000U, 0x7f'ffffU}) {
      numbers.push_back(std::bit_cast<float>(field << 23 | mantissa));
    }
  }
  const auto values = vector(DType::f32, numbers);
  core::ExactSquareSum expected;
  // Limbs which a collective has left large.
  for (auto& limb : expected.limbs) limb = (std::int64_t{1} << 62) - 12345;
  const Single<core::ExactSquareSum> sum(place(), expected);

  run([&](auto... stream) { add_squares(values.elements(), sum.view(), stream...); });

  expected.accumulate(numbers);
  EXPECT_EQ(sum.value(), expected);
}

TEST_P(Measure, SquaresOfManyNeighbouringValuesAreExactAnywhere) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> numbers;
  // Gradients: each tensor has a scale of its own, some are sparse, and a few values stand out.
  for (const float scale : {1e-3F, 1e-9F, 1e-19F, 1e-30F, 1e-41F, 1.0F, 1e12F, 1e37F, 1e-38F}) {
    for (int i = 0; i < 5000; ++i) {
      const bool is_absent = i > 3000 && i % 3 != 0;
      numbers.push_back(is_absent ? 0.0F : normal(random) * scale * (i % 997 == 0 ? 1e6F : 1.0F));
    }
  }
  const auto values = vector(DType::f32, numbers);
  const Single<core::ExactSquareSum> sum(place());

  run([&](auto... stream) { add_squares(values.elements(), sum.view(), stream...); });

  core::ExactSquareSum expected;
  expected.accumulate(numbers);
  EXPECT_EQ(sum.value(), expected);
}

/// Half have all bits of their mantissas; those between them are smaller by what a window of any kernel
/// allows, or by a little more.
TEST_P(Measure, SquaresBeyondAWindowsRoomAreExact) {
  std::vector<float> numbers(400'000, std::bit_cast<float>(0x3fff'ffffU));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    constexpr std::array<std::uint32_t, 8> kBelow{0, 4, 0, 13, 0, 22, 0, 27};  // exponents
    if (const auto below = kBelow[i / 1024 % kBelow.size()]; below != 0)
      numbers[i] = std::bit_cast<float>(static_cast<std::uint32_t>(((127 - below) << 23) + 1 + i));
  }
  const auto values = vector(DType::f32, numbers);
  const Single<core::ExactSquareSum> sum(place());

  run([&](auto... stream) { add_squares(values.elements(), sum.view(), stream...); });

  core::ExactSquareSum expected;
  expected.accumulate(numbers);
  EXPECT_EQ(sum.value(), expected);
}

TEST_P(Measure, SquareSumsAreAddedLimbByLimb) {
  std::array<core::ExactSquareSum, 5> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].accumulate(mixed_numbers(1000, static_cast<std::uint32_t>(i), true));
  }
  const Single<std::array<core::ExactSquareSum, 5>> there(place(), parts);
  const Single<core::ExactSquareSum> into(place(), parts[2]);

  run([&](auto... stream) { add_square_sums(there.view(), into.view(), stream...); });

  core::ExactSquareSum expected = parts[2];
  for (const auto& part : parts) expected.add(part);
  EXPECT_EQ(into.value(), expected);
}

TEST_P(Measure, TheLargestMagnitudeIgnoresSignsAndOnlyGrows) {
  for (const DType dtype : kSummedTypes) {
    for (std::size_t at = 0; at < 600; at += 37) {
      std::vector<float> numbers(600, 0.25F);
      numbers[at] = -2;
      const auto values = vector(dtype, numbers);
      const Single<std::uint32_t> small(place());
      const Single<std::uint32_t> large(place(), std::bit_cast<std::uint32_t>(8.0F));

      run([&](auto... stream) {
        raise_to_largest(values.elements(), small.view(), stream...);
        raise_to_largest(values.elements(), large.view(), stream...);
      });

      EXPECT_EQ(std::bit_cast<float>(small.value()), 2.0F);
      EXPECT_EQ(std::bit_cast<float>(large.value()), 8.0F);
    }
  }
}

TEST_P(Measure, NanIsLargerThanInfinity) {
  const Single<std::uint32_t> largest(place());
  const auto infinite = vector(DType::f16, std::vector<float>{1, -INFINITY, 2});
  run([&](auto... stream) { raise_to_largest(infinite.elements(), largest.view(), stream...); });
  EXPECT_EQ(std::bit_cast<float>(largest.value()), INFINITY);

  const auto with_nan = vector(DType::f16, std::vector<float>{1, -INFINITY, -NAN});
  run([&](auto... stream) { raise_to_largest(with_nan.elements(), largest.view(), stream...); });
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(largest.value())));
}

INSTANTIATE_TEST_SUITE_P(Places, TreeSums, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });
INSTANTIATE_TEST_SUITE_P(Places, Measure, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
