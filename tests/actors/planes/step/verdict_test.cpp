#include "actors/planes/step/verdict.hpp"
#include "actors/session/outcomes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

constexpr int kLanes = 3;

core::ExactSquareSum squares_of(const std::vector<float>& values) {
  core::ExactSquareSum sum;
  sum.accumulate(values);
  return sum;
}

/// What the collective does: an i64 sum of the ranks' words.
std::vector<std::int64_t> reduced(const std::vector<std::vector<std::int64_t>>& ranks) {
  std::vector<std::int64_t> sum(ranks[0].size(), 0);
  for (const auto& words : ranks) {
    for (std::size_t i = 0; i < words.size(); ++i) sum[i] += words[i];
  }
  return sum;
}

std::vector<std::int64_t> words_of(const std::vector<float>& gradient, std::vector<messages::LaneLoss> losses,
                                   bool refuse, std::uint32_t wishes = 0, std::uint64_t alike = 7) {
  std::vector<std::int64_t> words(verdict_words(), -1);
  write_verdict(losses, refuse, wishes, alike, words);
  const auto squares = squares_of_verdict(gpu::view_of(std::span(words))).as<core::ExactSquareSum>();
  EXPECT_EQ(squares[0], core::ExactSquareSum{});
  squares[0] = squares_of(gradient);
  return words;
}

TEST(Verdict, CarriesNormLossAndRefusalsOverTheSum) {
  const double small = std::nextafter(0.1, 1.0);
  auto words = reduced(
      {words_of({3, 0.25F}, {{{0}, -1e300}, {{1}, 3 * small}}, false), words_of({4}, {{{2}, 1e300}}, true)});

  auto verdict = read_verdict(words, {kLanes});

  EXPECT_EQ(verdict.gradient_norm, std::sqrt(25.0625));
  EXPECT_EQ(verdict.nonfinite_gradients, 0);
  EXPECT_EQ(verdict.loss, 3 * small / kLanes) << "the sum is exact, whatever its order";
  EXPECT_EQ(verdict.refusing, 1);
}

TEST(Verdict, CountsTheRanksThatRefuse) {
  auto words = reduced({words_of({}, {}, true), words_of({}, {}, false), words_of({}, {}, true)});

  EXPECT_EQ(read_verdict(words, {kLanes}).refusing, 2);
}

/// Also where differences cancel out in sums, of numbers and of squares.
TEST(Verdict, TellsWhetherAllRanksHaveTheSameNumber) {
  const auto differs = [](const std::vector<std::uint64_t>& numbers) {
    std::vector<std::vector<std::int64_t>> ranks;
    for (const auto number : numbers) ranks.push_back(words_of({}, {}, false, 0, number));
    return read_verdict(reduced(ranks), {kLanes}).differs;
  };
  constexpr std::uint64_t kLarge = 0xfedcba9876543210;

  EXPECT_FALSE(differs({kLarge}));
  EXPECT_FALSE(differs({0, 0, 0}));
  EXPECT_FALSE(differs({~std::uint64_t{0}, ~std::uint64_t{0}}));
  EXPECT_FALSE(differs(std::vector<std::uint64_t>(1000, kLarge)));
  EXPECT_TRUE(differs({kLarge, kLarge + 1}));
  EXPECT_TRUE(differs({kLarge, kLarge ^ std::uint64_t{1} << 63}));
  EXPECT_TRUE(differs({5, 4, 6})) << "the mean is that of the first";
  EXPECT_TRUE(differs({7, 1, 5, 5, 5})) << "the mean is an integer that no rank has";
  EXPECT_TRUE(differs({0x10000, 0x00001})) << "parts change places";
  auto one = std::vector<std::uint64_t>(1000, kLarge);
  one[999] += 1;
  EXPECT_TRUE(differs(one));
}

TEST(Verdict, HasRoomForTheWishesOfManyRanks) {
  std::vector<std::vector<std::int64_t>> ranks(1000, words_of({}, {}, false, 0x8000'0003));
  ranks.push_back(words_of({}, {}, false, 0x10));

  EXPECT_EQ(read_verdict(reduced(ranks), {kLanes}).wishes, 0x8000'0013);
}

TEST(Verdict, TellsEveryRankWhatAnyRankWishes) {
  auto words = reduced({words_of({1}, {}, false, kWishSave), words_of({1}, {}, true, kWishLeave)});

  auto verdict = read_verdict(words, {kLanes});

  EXPECT_EQ(verdict.wishes, kWishSave | kWishLeave);
}

// Covers finish-16.
TEST(Verdict, CountsNonFiniteGradientsAndLossesOfAllRanks) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  auto words = reduced({words_of({nan, 1, -infinity}, {{{0}, std::nan("")}, {{1}, -infinity}}, false),
                        words_of({infinity}, {}, false)});

  auto verdict = read_verdict(words, {kLanes});

  EXPECT_EQ(verdict.nonfinite_gradients, 3);
  EXPECT_EQ(verdict.gradient_norm, 1) << "of what is finite";
  EXPECT_TRUE(std::isnan(verdict.loss));
}

// Covers finish-13.
TEST(Verdict, DividesByTheExactSumOfWeights) {
  const double small = std::nextafter(0.1, 1.0);
  auto words = reduced(
      {words_of({3}, {{{0}, 4, 1e300}, {{1}, 8, 0}}, false), words_of({4}, {{{2}, 1, 3 * small}}, false)});

  auto verdict = read_verdict(words, {.lanes = 3, .microbatches = 4, .loss_divisor = 5});

  EXPECT_EQ(verdict.weight, 1e300 + 3 * small);
  EXPECT_EQ(verdict.loss, 13 / (verdict.weight / 5));
  EXPECT_EQ(verdict.gradient_factor, 60 / verdict.weight);
  EXPECT_EQ(verdict.unweighted_lanes, 0);
  EXPECT_EQ(read_verdict(words, {.lanes = 3, .average = false}).gradient_factor, 1);
}

TEST(Verdict, TakesWeightsThatAreTheDivisorsForNone) {
  for (const double rows : {16.0, 48.0, 1023.0}) {
    for (const int microbatches : {1, 3, 4}) {
      const double weight = rows * microbatches;
      auto words = reduced({words_of({3}, {{{0}, 0.1, weight}, {{1}, 0.2, weight}}, false),
                            words_of({4}, {{{2}, 0.7, weight}}, false)});

      auto verdict = read_verdict(words, {.lanes = 3, .microbatches = microbatches, .loss_divisor = rows});

      EXPECT_EQ(verdict.gradient_factor, 1);
    }
  }
}

TEST(Verdict, CountsUnweightedLanesOnlyWhereOthersHaveWeights) {
  auto none = reduced({words_of({}, {{{0}, 1}, {{1}, 2}}, false), words_of({}, {{{2}, 3}}, false)});
  auto one = reduced({words_of({}, {{{0}, 1}, {{1}, 2}}, false), words_of({}, {{{2}, 3, 1}}, false)});

  EXPECT_EQ(read_verdict(none, {kLanes}).unweighted_lanes, 0);
  EXPECT_EQ(read_verdict(none, {kLanes}).weight, kLanes);
  EXPECT_EQ(read_verdict(one, {kLanes}).unweighted_lanes, 2);
}

TEST(Verdict, HasNoLossWithoutATarget) {
  auto words = words_of({}, {{{0}, 0, 0}, {{1}, 0, 0}, {{2}, 0, 0}}, false);

  auto verdict = read_verdict(words, {kLanes});

  EXPECT_EQ(verdict.weight, 0);
  EXPECT_EQ(verdict.loss, 0);
  EXPECT_EQ(verdict.gradient_factor, 1);
}

TEST(Verdict, DoesNotDependOnHowTheGradientIsCut) {
  std::vector<float> all;
  for (int i = 0; i < 1000; ++i) all.push_back(std::ldexp(1.0F + static_cast<float>(i) / 999, i % 40 - 20));
  auto whole = reduced({words_of(all, {}, false), words_of({}, {}, false)});
  for (std::size_t cut : {1u, 17u, 500u, 999u}) {
    auto border = all.begin() + static_cast<std::ptrdiff_t>(cut);
    auto parts =
        reduced({words_of({all.begin(), border}, {}, false), words_of({border, all.end()}, {}, false)});

    EXPECT_EQ(read_verdict(parts, {kLanes}), read_verdict(whole, {kLanes}));
  }
}

}  // namespace
}  // namespace troupe::actors
