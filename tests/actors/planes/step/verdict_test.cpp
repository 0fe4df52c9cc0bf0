#include "actors/planes/step/verdict.hpp"
#include "actors/session/outcomes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

constexpr int kLanes = 3;
constexpr core::WorldSize kWorld{2};

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
                                   bool refuse, core::Rank rank, std::uint32_t wishes = 0) {
  std::vector<std::int64_t> words(verdict_words(kLanes, kWorld), -1);
  write_verdict(losses, refuse, wishes, rank, kLanes, words);
  const auto squares = squares_of_verdict(gpu::view_of(std::span(words))).as<core::ExactSquareSum>();
  EXPECT_EQ(squares[0], core::ExactSquareSum{});
  squares[0] = squares_of(gradient);
  return words;
}

TEST(Verdict, CarriesNormLossesAndRefusalsOverTheSum) {
  const double odd = -std::nextafter(0.1, 1.0);
  auto words = reduced({words_of({3, 0.25F}, {{{0}, odd}, {{1}, 1e300}}, false, {0}),
                        words_of({4}, {{{2}, -0.0}}, true, {1})});

  auto verdict = read_verdict(words, kLanes, kWorld);

  EXPECT_EQ(verdict.gradient_norm, std::sqrt(25.0625));
  EXPECT_EQ(verdict.nonfinite_gradients, 0);
  EXPECT_EQ(verdict.losses, (std::vector<double>{odd, 1e300, 0}));
  EXPECT_TRUE(std::signbit(verdict.losses[2])) << "a loss's bits are carried, not its value";
  EXPECT_EQ(verdict.refusing_ranks, (std::vector<std::int32_t>{1}));
}

TEST(Verdict, TellsEveryRankWhatAnyRankWishes) {
  auto words = reduced({words_of({1}, {}, false, {0}, kWishSave), words_of({1}, {}, true, {1}, kWishLeave)});

  auto verdict = read_verdict(words, kLanes, kWorld);

  EXPECT_EQ(verdict.wishes, kWishSave | kWishLeave);
  EXPECT_EQ(verdict.refusing_ranks, (std::vector<std::int32_t>{1}));
}

TEST(Verdict, CountsNaNAndInfOfAllRanksAndKeepsALossThatIsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  auto words = reduced({words_of({nan, 1, -infinity}, {{{0}, std::nan("")}, {{1}, -infinity}}, false, {0}),
                        words_of({infinity}, {}, false, {1})});

  auto verdict = read_verdict(words, kLanes, kWorld);

  EXPECT_EQ(verdict.nonfinite_gradients, 3);
  EXPECT_EQ(verdict.gradient_norm, 1) << "of what is finite";
  EXPECT_TRUE(std::isnan(verdict.losses[0]));
  EXPECT_EQ(verdict.losses[1], -infinity);
}

TEST(Verdict, DoesNotDependOnHowTheGradientIsCut) {
  std::vector<float> all;
  for (int i = 0; i < 1000; ++i) all.push_back(std::ldexp(1.0F + static_cast<float>(i) / 999, i % 40 - 20));
  auto whole = reduced({words_of(all, {}, false, {0}), words_of({}, {}, false, {1})});
  for (std::size_t cut : {1u, 17u, 500u, 999u}) {
    auto border = all.begin() + static_cast<std::ptrdiff_t>(cut);
    auto parts = reduced(
        {words_of({all.begin(), border}, {}, false, {0}), words_of({border, all.end()}, {}, false, {1})});

    EXPECT_EQ(read_verdict(parts, kLanes, kWorld), read_verdict(whole, kLanes, kWorld));
  }
}

}  // namespace
}  // namespace troupe::actors
