#include "core/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace troupe::core {
namespace {

using Block = std::array<std::uint32_t, 4>;

// The known answers that the authors of Philox publish with their code.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRandom, DependsOnEachOfItsCoordinates) {
  std::set<std::uint32_t> seen;

  for (const std::uint64_t seed : {1ULL, 2ULL}) {
    for (const char* stream : {"data", "dropout"}) {
      for (const std::int64_t step : {0LL, 1LL, 1LL << 32, 1LL << 47}) {
        for (const int lane : {0, 1, 1 << 30}) {
          for (const std::uint64_t index : {0ULL, 1ULL, 4ULL, 1ULL << 34, 1ULL << 49}) {
            seen.insert(CounterRandom(seed, stream, Step{step}, Lane{lane}).bits(index));
          }
        }
      }
    }
  }

  EXPECT_EQ(seen.size(), 2U * 2 * 4 * 3 * 5);
}

TEST(CounterRandom, GivesTheSameNumbersInAnyOrder) {
  const CounterRandom forward(7, "data", Step{3}, Lane{5});
  const CounterRandom backward(7, "data", Step{3}, Lane{5});
  std::vector<std::uint32_t> first(1000);
  std::vector<std::uint32_t> second(1000);

  for (std::size_t i = 0; i < 1000; ++i) first[i] = forward.bits(i);
  for (std::size_t i = 1000; i-- > 0;) second[i] = backward.bits(i);

  EXPECT_EQ(first, second);
}

TEST(CounterRandom, UniformAndNormalHaveTheMomentsOfTheirDistributions) {
  const CounterRandom random(42, "moments");
  constexpr int kCount = 1'000'000;
  double uniform_mean = 0;
  double normal_mean = 0;
  double normal_square = 0;
  double normal_fourth = 0;

  for (int i = 0; i < kCount; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const double u = random.uniform(index);
    const double n = random.normal(index);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    uniform_mean += u / kCount;
    normal_mean += n / kCount;
    normal_square += n * n / kCount;
    normal_fourth += n * n * n * n / kCount;
  }

  // Within five deviations of the estimates.
  EXPECT_NEAR(uniform_mean, 0.5, 5 * 0.2887 / 1000);
  EXPECT_NEAR(normal_mean, 0, 5 * 1.0 / 1000);
  EXPECT_NEAR(normal_square, 1, 5 * 1.4142 / 1000);
  EXPECT_NEAR(normal_fourth, 3, 5 * 9.8 / 1000);
}

TEST(CounterRandom, BelowReachesEveryValueAboutEquallyOften) {
  const CounterRandom random(1, "below");
  std::vector<int> counts(7);

  for (std::uint64_t i = 0; i < 70'000; ++i) ++counts.at(random.below(7, i));

  for (const int count : counts) EXPECT_NEAR(count, 10'000, 5 * 93);
}

TEST(InverseNormal, UndoesTheNormalDistribution) {
  for (const double p :
       {0x1p-33, 1e-9, 1e-6, 1e-3, 0.02, 0.0749999, 0.0750001, 0.2, 0.4, 0.6, 0.925, 0.999, 1 - 1e-9}) {
    const double x = inverse_normal(p);
    const double back = 0.5 * std::erfc(-x / std::sqrt(2.0));
    const double smaller = std::min(p, 1 - p);

    // An error d of x moves the probability by about d * |x| * p.
    EXPECT_NEAR(back, p, smaller * (1 + x * x) * 3e-7) << p;
  }
  EXPECT_EQ(inverse_normal(0.5), 0);
  EXPECT_EQ(inverse_normal(0.25), -inverse_normal(0.75));
}

}  // namespace
}  // namespace troupe::core
