#include "gpu/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/manual_timeline.hpp"
#include "tests/gpu/place.hpp"

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

class Kernels : public testing::TestWithParam<PlaceUnderTest>, protected AtPlace {
 protected:
  void SetUp() override { open(GetParam()); }
};

TEST_P(Kernels, CopyAndZeroMoveBytesOfAnyCount) {
  for (const std::size_t count : kCounts) {
    const auto source = vector(DType::bf16, mixed_numbers(count, 1, true));
    const auto destination = vector(DType::bf16, count);

    run([&](auto... stream) { copy(source.view(), destination.view(), stream...); });
    expect_same(destination, source.values());

    run([&](auto... stream) { zero(destination.view(), stream...); });
    expect_same(destination, std::vector<float>(count, 0.0F));
  }
}

TEST_P(Kernels, PackedRangesLieInSequenceAndUnpack) {
  // Ranges whose lengths and places no word wider than a byte divides, and more than one launch takes.
  constexpr std::size_t kRanges = 300;
  std::mt19937 bits(3);
  std::vector<std::size_t> lengths(kRanges);
  for (auto& length : lengths) length = bits() % 7 == 0 ? bits() % 5000 : bits() % 40;
  std::vector<std::byte> bytes(kRanges * 5100);
  for (auto& byte : bytes) byte = static_cast<std::byte>(bits());
  const Buffer source = place().allocate(bytes.size());
  const Buffer destination = place().allocate(bytes.size());
  place().write(bytes.data(), source.view());
  std::vector<ConstBufferView> from;
  std::vector<BufferView> to;
  std::vector<std::byte> expected;
  std::vector<std::byte> scattered(bytes.size());
  std::size_t at = 0;
  for (const std::size_t length : lengths) {
    from.emplace_back(source.view().subview(at, length));
    to.push_back(destination.view().subview(at, length));
    expected.insert(expected.end(), bytes.begin() + at, bytes.begin() + at + length);
    std::memcpy(&scattered[at], &bytes[at], length);
    at += length + bits() % 3 * 16 + bits() % 3;
  }
  const Buffer flat = place().allocate(expected.size());

  run([&](auto... stream) { pack(from, flat.view(), stream...); });
  run([&](auto... stream) { unpack(flat.view(), to, stream...); });

  std::vector<std::byte> found(expected.size());
  place().read(flat.view(), found.data());
  EXPECT_EQ(found, expected);
  found.resize(scattered.size());
  place().read(destination.view(), found.data());
  EXPECT_EQ(found, scattered) << "every range is where it was, and nothing beside it was touched";
}

/// Ranges of odd places and lengths, also empty ones, and more of them than one launch takes.
TEST_P(Kernels, PackedElementsAreCastAsTheyMove) {
  const std::array pairs{std::pair{DType::f32, DType::bf16}, std::pair{DType::bf16, DType::f32},
                         std::pair{DType::f16, DType::f8_e5m2}, std::pair{DType::bf16, DType::bf16}};
  for (const auto& [from, to] : pairs) {
    constexpr std::size_t kRanges = 300;
    std::mt19937 bits(7);
    const auto source = vector(from, mixed_numbers(kRanges * 90, 5, true));
    const auto back = vector(from, kRanges * 90);
    const auto before = source.values();
    std::vector<ConstElements> ranges;
    std::vector<Elements> destinations;
    std::vector<float> expected;
    std::vector<float> scattered(before.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < kRanges; ++i) {
      const std::size_t length = i % 7 == 3 ? 0 : i % 5 == 0 ? 64 : bits() % 70;
      ranges.emplace_back(source.elements().part(at, length));
      destinations.push_back(back.elements().part(at, length));
      for (std::size_t e = at; e < at + length; ++e) {
        expected.push_back(rounded(to, before[e]));
        scattered[e] = rounded(from, expected.back());
      }
      at += length + bits() % 3 * 8 + bits() % 3;
    }
    const auto flat = vector(to, expected.size());

    run([&](auto... stream) { pack(ranges, flat.elements(), stream...); });
    run([&](auto... stream) { unpack(flat.elements(), destinations, stream...); });

    expect_same(flat, expected);
    expect_same(back, scattered);
  }
}

TEST_P(Kernels, RoundToKeepsTheDtypeAndRoundsOnce) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType narrow : kFloating) {
      const auto whole = vector(dtype, mixed_numbers(1300, 11, true));
      const auto pieces = vector(dtype, mixed_numbers(1300, 11, true));
      auto expected = whole.values();
      for (float& value : expected) value = rounded(dtype, rounded(narrow, value));

      run([&](auto... stream) { round_to(narrow, whole.elements(), stream...); });
      in_pieces(1300, [&](std::size_t first, std::size_t length) {
        run([&](auto... stream) { round_to(narrow, pieces.elements().part(first, length), stream...); });
      });

      expect_same(whole, expected);
      expect_same(pieces, expected);
    }
  }
}

TEST_P(Kernels, FillRoundsItsValueOnce) {
  for (const DType dtype : kFloating) {
    const auto destination = vector(dtype, 1025);

    run([&](auto... stream) { fill(destination.elements(), 0.3F, stream...); });

    expect_same(destination, std::vector<float>(1025, rounded(dtype, 0.3F)));
  }
}

// Covers unit-3.
TEST_P(Kernels, CastRoundsOnceBetweenAllFloatingPairs) {
  for (const DType from : kFloating) {
    for (const DType to : kFloating) {
      for (const std::size_t count : kCounts) {
        const auto source = vector(from, mixed_numbers(count, 2, true));
        const auto destination = vector(to, count);
        const auto pieces = vector(to, count);

        run([&](auto... stream) { cast(source.elements(), destination.elements(), stream...); });
        in_pieces(count, [&](std::size_t first, std::size_t length) {
          run([&](auto... stream) {
            cast(source.elements().part(first, length), pieces.elements().part(first, length), stream...);
          });
        });

        std::vector<float> expected = source.values();
        for (float& value : expected) value = rounded(to, value);
        expect_same(destination, expected);
        expect_same(pieces, expected);
      }
    }
  }
}

TEST_P(Kernels, CastWidensEveryCodeOfEveryFormatExactly) {
  for (const DType from : kFloating) {
    const std::size_t size = core::size_of(from);
    const std::size_t codes = std::size_t{1} << std::min<std::size_t>(16, 8 * size);
    std::vector<std::byte> bytes(codes * size);
    std::vector<float> expected(codes);
    for (std::uint32_t code = 0; code < codes; ++code) {
      // fp32 has too many codes; some of every exponent will do.
      const std::uint32_t word = size == 4 ? code << 16 | code : code;
      std::memcpy(&bytes[code * size], &word, size);
      expected[code] = reference_widen(from, &bytes[code * size]);
    }
    const Buffer source = place().allocate(bytes.size());
    place().write(bytes.data(), source.view());
    const auto destination = vector(DType::f32, codes);

    run([&](auto... stream) { cast({source.view(), from}, destination.elements(), stream...); });

    expect_same(destination, expected);
  }
}

TEST_P(Kernels, CastRoundsEveryUpperHalfToNearestEven) {
  // The lower halves around a tie of every format.
  for (const std::uint32_t low : {0U, 1U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    std::vector<float> numbers(1 << 16);
    for (std::uint32_t high = 0; high < numbers.size(); ++high) {
      numbers[high] = std::bit_cast<float>(high << 16 | low);
    }
    const auto source = vector(DType::f32, numbers);
    for (const DType to : kFloating) {
      const auto destination = vector(to, numbers.size());

      run([&](auto... stream) { cast(source.elements(), destination.elements(), stream...); });

      std::vector<float> expected = numbers;
      for (float& value : expected) value = rounded(to, value);
      expect_same(destination, expected);
    }
  }
}

TEST_P(Kernels, ScaleMultipliesInFp32AndRoundsOnce) {
  for (const DType dtype : kFloating) {
    for (const std::size_t count : kCounts) {
      const auto whole = vector(dtype, mixed_numbers(count, 3, true));
      const Vector pieces = whole;
      std::vector<float> expected = whole.values();

      run([&](auto... stream) { scale(whole.elements(), 1.0F / 3, stream...); });
      in_pieces(count, [&](std::size_t first, std::size_t length) {
        run([&](auto... stream) { scale(pieces.elements().part(first, length), 1.0F / 3, stream...); });
      });

      for (float& value : expected) value = rounded(dtype, value * (1.0F / 3));
      expect_same(whole, expected);
      expect_same(pieces, expected);
    }
  }
}

TEST_P(Kernels, AccumulateAddsInFp32AndRoundsOnce) {
  for (const DType from : kSummed) {
    for (const DType to : kSummed) {
      for (const std::size_t count : kCounts) {
        const auto source = vector(from, mixed_numbers(count, 4, true));
        const auto whole = vector(to, mixed_numbers(count, 5, true));
        const Vector pieces = whole;
        std::vector<float> expected = whole.values();

        run([&](auto... stream) { accumulate(source.elements(), whole.elements(), stream...); });
        in_pieces(count, [&](std::size_t first, std::size_t length) {
          run([&](auto... stream) {
            accumulate(source.elements().part(first, length), pieces.elements().part(first, length),
                       stream...);
          });
        });

        const auto more = source.values();
        for (std::size_t i = 0; i < count; ++i) expected[i] = rounded(to, expected[i] + more[i]);
        expect_same(whole, expected);
        expect_same(pieces, expected);
      }
    }
  }
}

TEST_P(Kernels, RunInTheOrderOfTheirStream) {
  const std::vector<core::TreeStep> steps = {{0, 1}};
  const auto a = vector(DType::f32, 5000);
  const auto b = vector(DType::bf16, 5000);
  const auto c = vector(DType::bf16, 5000);
  const Single<std::uint32_t> largest(place());
  const Single<core::ExactSquareSum> squares(place());
  const TreeSum sum{
      .slots = {b.elements(), c.elements()}, .steps = steps, .factor = 0.5F, .output = a.elements()};

  run([&](auto... stream) {
    fill(a.elements(), 3, stream...);
    cast(a.elements(), b.elements(), stream...);
    scale(b.elements(), 2, stream...);
    copy(b.view(), c.view(), stream...);
    accumulate(b.elements(), a.elements(), stream...);
    tree_sum(sum, stream...);
    round_to(DType::bf16, a.elements(), stream...);
    raise_to_largest(a.elements(), largest.view(), stream...);
    add_squares(a.elements(), squares.view(), stream...);
    zero(c.view(), stream...);
  });

  expect_same(a, std::vector<float>(5000, 6.0F));
  expect_same(c, std::vector<float>(5000, 0.0F));
  EXPECT_EQ(std::bit_cast<float>(largest.value()), 6.0F);
  EXPECT_EQ(squares.value().to_double(), 36.0 * 5000);
}

INSTANTIATE_TEST_SUITE_P(Places, Kernels, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });

TEST(SimulatedKernels, TakeTheTimeOfTheBytesTheyTouch) {
  ManualTimeline timeline;
  SimulatedDevice device(timeline, {.task_latency = 0ns, .bytes_per_second = 1e9});
  std::map<std::string, std::chrono::nanoseconds> durations;
  device.observe(
      [&](const TaskRecord& record) { durations[std::string(record.label)] = record.end - record.begin; });
  const auto stream = device.create_stream({.name = "kernels"}).value();
  const Buffer floats = device.allocate(4000).value();
  const Buffer halves = device.allocate(2000).value();
  const Elements a{floats.view(), DType::f32};
  const Elements b{halves.view(), DType::bf16};

  cast(a, b, stream.get());
  scale(a, 2, stream.get());
  accumulate(b, a, stream.get());
  pack({b.view}, halves.view(), stream.get());
  sgd_step({}, {.gradient = b, .master = a.view, .parameter = {}}, {}, stream.get());
  timeline.run_until_idle();

  EXPECT_EQ(durations["cast"], 6000ns);
  EXPECT_EQ(durations["scale"], 8000ns);
  EXPECT_EQ(durations["accumulate"], 10000ns);
  EXPECT_EQ(durations["pack"], 4000ns);
  EXPECT_EQ(durations["sgd_step"], 10000ns);
}

}  // namespace
}  // namespace troupe::gpu
