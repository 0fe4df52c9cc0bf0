#include "gpu/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/host/host_device.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::gpu {
namespace {

using core::DType;
using namespace std::chrono_literals;

constexpr std::array kFloating = {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2};
constexpr std::array kSummed = {DType::f32, DType::f16, DType::bf16};

/// Calls part(first, length) for uneven pieces which together are [0, count).
void in_pieces(std::size_t count, const std::function<void(std::size_t, std::size_t)>& part) {
  std::size_t first = 0;
  for (std::size_t length = 1; first < count; length = length * 3 + 2) {
    const std::size_t taken = std::min(length, count - first);
    part(first, taken);
    first += taken;
  }
}

void expect_same(const Vector& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.count(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(same(found[i], expected[i]))
        << "element " << i << ": " << found[i] << ", expected " << expected[i];
  }
}

void expect_same(const Vector& found, const Vector& expected) {
  std::vector<float> values;
  for (std::size_t i = 0; i < expected.count(); ++i) values.push_back(expected[i]);
  expect_same(found, values);
}

TEST(Kernels, CopyAndZeroMoveBytesOfAnyCount) {
  for (const std::size_t count : kCounts) {
    Vector source(DType::bf16, mixed_numbers(count, 1, true));
    Vector destination(DType::bf16, count);

    copy(source.view(), destination.view());
    expect_same(destination, source);

    zero(destination.view());
    expect_same(destination, std::vector<float>(count, 0.0F));
  }
}

TEST(Kernels, FillRoundsItsValueOnce) {
  for (const DType dtype : kFloating) {
    Vector destination(dtype, 1025);

    fill(destination.elements(), 0.3F);

    expect_same(destination, std::vector<float>(1025, rounded(dtype, 0.3F)));
  }
}

TEST(Kernels, CastRoundsOnceBetweenAllFloatingPairs) {
  for (const DType from : kFloating) {
    for (const DType to : kFloating) {
      for (const std::size_t count : kCounts) {
        Vector source(from, mixed_numbers(count, 2, true));
        Vector destination(to, count);
        Vector pieces(to, count);

        cast(source.elements(), destination.elements());
        in_pieces(count, [&](std::size_t first, std::size_t length) {
          cast(source.elements().part(first, length), pieces.elements().part(first, length));
        });

        std::vector<float> expected(count);
        for (std::size_t i = 0; i < count; ++i) expected[i] = rounded(to, source[i]);
        expect_same(destination, expected);
        expect_same(pieces, expected);
      }
    }
  }
}

TEST(Kernels, ScaleMultipliesInFp32AndRoundsOnce) {
  for (const DType dtype : kFloating) {
    for (const std::size_t count : kCounts) {
      const Vector source(dtype, mixed_numbers(count, 3, true));
      Vector whole = source;
      Vector pieces = source;

      scale(whole.elements(), 1.0F / 3);
      in_pieces(count, [&](std::size_t first, std::size_t length) {
        scale(pieces.elements().part(first, length), 1.0F / 3);
      });

      std::vector<float> expected(count);
      for (std::size_t i = 0; i < count; ++i) expected[i] = rounded(dtype, source[i] * (1.0F / 3));
      expect_same(whole, expected);
      expect_same(pieces, expected);
    }
  }
}

TEST(Kernels, AccumulateAddsInFp32AndRoundsOnce) {
  for (const DType from : kSummed) {
    for (const DType to : kSummed) {
      for (const std::size_t count : kCounts) {
        Vector source(from, mixed_numbers(count, 4, true));
        const Vector before(to, mixed_numbers(count, 5, true));
        Vector whole = before;
        Vector pieces = before;

        accumulate(source.elements(), whole.elements());
        in_pieces(count, [&](std::size_t first, std::size_t length) {
          accumulate(source.elements().part(first, length), pieces.elements().part(first, length));
        });

        std::vector<float> expected(count);
        for (std::size_t i = 0; i < count; ++i) expected[i] = rounded(to, before[i] + source[i]);
        expect_same(whole, expected);
        expect_same(pieces, expected);
      }
    }
  }
}

/// The sum of the tree over lanes [first, end), by its definition.
float sum_of_tree(const std::vector<float>& lanes, std::size_t first, std::size_t end) {
  std::size_t half = 1;
  if (end - first == 1) return lanes[first];
  while (2 * half < end - first) half *= 2;
  return sum_of_tree(lanes, first, first + half) + sum_of_tree(lanes, first + half, end);
}

TEST(TreeSum, GivesTheBitsOfTheTreeForAnyNumberOfLanesAndAnyDtype) {
  for (const DType dtype : kSummed) {
    for (const DType to : kSummed) {
      for (const int lanes : {1, 2, 3, 4, 5, 8}) {
        constexpr std::size_t kCount = 1300;
        const auto split = core::split_lanes(lanes, {lanes}).value();
        const auto steps = core::finishing_program(split);
        std::vector<Vector> slots;
        for (int lane = 0; lane < lanes; ++lane)
          slots.emplace_back(dtype, mixed_numbers(kCount, 10U + lane, true));
        TreeSum sum{.slots = {}, .dtype = dtype, .steps = steps, .factor = 1.0F / 3, .output = {}};
        for (auto& slot : slots) sum.slots.emplace_back(slot.view());
        Vector whole(to, kCount);
        Vector pieces(to, kCount);

        sum.output = whole.elements();
        tree_sum(sum);
        in_pieces(kCount, [&](std::size_t first, std::size_t length) {
          TreeSum part = sum;
          for (std::size_t i = 0; i < slots.size(); ++i)
            part.slots[i] = slots[i].elements().part(first, length).view;
          part.output = pieces.elements().part(first, length);
          tree_sum(part);
        });

        std::vector<float> expected(kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          std::vector<float> values;
          for (const auto& slot : slots) values.push_back(slot[i]);
          expected[i] = rounded(to, sum_of_tree(values, 0, values.size()) * (1.0F / 3));
        }
        expect_same(whole, expected);
        expect_same(pieces, expected);
      }
    }
  }
}

TEST(TreeSum, KeepsItsSlotsAndMayWriteOverOne) {
  const std::vector<core::TreeStep> steps = {{0, 1}};
  for (const DType dtype : kSummed) {
    Vector first(dtype, mixed_numbers(700, 1));
    Vector second(dtype, mixed_numbers(700, 2));
    const Vector second_before = second;
    std::vector<float> expected(700);
    for (std::size_t i = 0; i < 700; ++i) expected[i] = rounded(dtype, first[i] + second[i]);

    tree_sum(
        {.slots = {first.view(), second.view()}, .dtype = dtype, .steps = steps, .output = first.elements()});

    expect_same(first, expected);
    expect_same(second, second_before);
  }
}

TEST(TreeSum, RefusesAStepToASlotThatIsNotThere) {
  const std::vector<core::TreeStep> steps = {{0, 1}};
  Vector only(DType::f32, 4);
  EXPECT_DEATH(tree_sum({.slots = {only.view()}, .steps = steps, .output = only.elements()}),
               "joins two of its slots");
}

core::ExactSquareSum squares_of(const Vector& values) {
  core::ExactSquareSum sum;
  for (std::size_t i = 0; i < values.count(); ++i) {
    const float value = values[i];
    sum.accumulate({&value, 1});
  }
  return sum;
}

TEST(Measure, SquaresAreExactHoweverTheRangeIsCut) {
  for (const DType dtype : kFloating) {
    Vector values(dtype, mixed_numbers(40'000, 6, true));
    core::ExactSquareSum whole;
    core::ExactSquareSum pieces;

    add_squares(values.elements(), view_of(std::span(&whole, 1)));
    in_pieces(values.count(), [&](std::size_t first, std::size_t length) {
      add_squares(values.elements().part(first, length), view_of(std::span(&pieces, 1)));
    });

    const auto expected = squares_of(values);
    EXPECT_EQ(whole.to_double(), expected.to_double());
    EXPECT_EQ(pieces.to_double(), expected.to_double());
    EXPECT_EQ(whole.nonfinite, expected.nonfinite);
    EXPECT_EQ(pieces.nonfinite, expected.nonfinite);
    EXPECT_GT(whole.nonfinite, 0);
  }
}

TEST(Measure, TheLargestMagnitudeIgnoresSignsAndOnlyGrows) {
  for (const DType dtype : kSummed) {
    for (std::size_t at = 0; at < 600; at += 37) {
      std::vector<float> values(600, 0.25F);
      values[at] = -2;
      Vector vector(dtype, values);
      std::uint32_t largest = 0;

      raise_to_largest(vector.elements(), view_of(std::span(&largest, 1)));
      EXPECT_EQ(std::bit_cast<float>(largest), 2.0F);

      largest = std::bit_cast<std::uint32_t>(8.0F);
      raise_to_largest(vector.elements(), view_of(std::span(&largest, 1)));
      EXPECT_EQ(std::bit_cast<float>(largest), 8.0F);
    }
  }
}

TEST(Measure, NanIsLargerThanInfinity) {
  std::uint32_t largest = 0;
  Vector infinite(DType::f16, std::vector<float>{1, -INFINITY, 2});
  raise_to_largest(infinite.elements(), view_of(std::span(&largest, 1)));
  EXPECT_EQ(std::bit_cast<float>(largest), INFINITY);

  Vector with_nan(DType::f16, std::vector<float>{1, -INFINITY, -NAN});
  raise_to_largest(with_nan.elements(), view_of(std::span(&largest, 1)));
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(largest)));
}

TEST(Kernels, EnqueuedTheyRunInTheOrderOfTheirStream) {
  const auto device = open_host_device().value();
  const auto stream = device->create_stream({.name = "kernels"}).value();
  const std::vector<core::TreeStep> steps = {{0, 1}};
  Vector a(DType::f32, 5000);
  Vector b(DType::bf16, 5000);
  Vector c(DType::bf16, 5000);
  std::uint32_t largest = 0;
  core::ExactSquareSum squares;

  fill(a.elements(), 3, stream.get());
  cast(a.elements(), b.elements(), stream.get());
  scale(b.elements(), 2, stream.get());
  copy(b.view(), c.view(), stream.get());
  accumulate(b.elements(), a.elements(), stream.get());
  tree_sum({.slots = {b.view(), c.view()},
            .dtype = DType::bf16,
            .steps = steps,
            .factor = 0.5F,
            .output = a.elements()},
           stream.get());
  raise_to_largest(a.elements(), view_of(std::span(&largest, 1)), stream.get());
  add_squares(a.elements(), view_of(std::span(&squares, 1)), stream.get());
  zero(c.view(), stream.get());
  ASSERT_TRUE(stream->synchronize(60s));

  expect_same(a, std::vector<float>(5000, 6.0F));
  expect_same(c, std::vector<float>(5000, 0.0F));
  EXPECT_EQ(std::bit_cast<float>(largest), 6.0F);
  EXPECT_EQ(squares.to_double(), 36.0 * 5000);
}

TEST(Kernels, InSimulationTheyTakeTheTimeOfTheBytesTheyTouch) {
  ManualTimeline timeline;
  SimulatedDevice device(timeline, {.task_latency = 0ns, .bytes_per_second = 1e9});
  std::map<std::string, std::chrono::nanoseconds> durations;
  device.observe(
      [&](const TaskRecord& record) { durations[std::string(record.label)] = record.end - record.begin; });
  const auto stream = device.create_stream({.name = "kernels"}).value();
  Vector a(DType::f32, 1000);
  Vector b(DType::bf16, 1000);

  cast(a.elements(), b.elements(), stream.get());
  scale(a.elements(), 2, stream.get());
  accumulate(b.elements(), a.elements(), stream.get());
  sgd_step({}, {.gradient = b.elements(), .master = a.view(), .parameter = {}}, {}, stream.get());
  timeline.run_until_idle();

  EXPECT_EQ(durations["cast"], 6000ns);
  EXPECT_EQ(durations["scale"], 8000ns);
  EXPECT_EQ(durations["accumulate"], 10000ns);
  EXPECT_EQ(durations["sgd_step"], 10000ns);
}

}  // namespace
}  // namespace troupe::gpu
