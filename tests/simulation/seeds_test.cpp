#include <gtest/gtest.h>

#include <set>

#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

constexpr std::uint64_t kSeeds = 1000;
constexpr std::uint64_t kSeedsRunTwice = 50;

TEST(Simulation, AThousandSeedsBreakNoInvariantNorBits) {
  auto options = tiny_job(core::Strategy::zero1);
  const auto reference = simulate_tiny(1, 0, options).ranks[0].state_hash;

  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    auto outcome = simulate_tiny(4, seed, options);
    ASSERT_EQ(problems_of(outcome.report), "") << "seed " << seed;
    ASSERT_EQ(outcome.report.steps_committed, 5) << "seed " << seed;
    for (const auto& rank : outcome.ranks) ASSERT_EQ(rank.state_hash, reference) << "seed " << seed;
  }
}

TEST(Simulation, RunsOfASeedAgreeAndOtherSeedsDiffer) {
  auto options = tiny_job(core::Strategy::zero1);
  std::set<std::uint64_t> traces;

  for (std::uint64_t seed = 0; seed < kSeedsRunTwice; ++seed) {
    auto first = simulate_tiny(4, seed, options).report;
    auto second = simulate_tiny(4, seed, options).report;
    ASSERT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    ASSERT_EQ(first.events, second.events) << "seed " << seed;
    ASSERT_EQ(first.virtual_time, second.virtual_time) << "seed " << seed;
    traces.insert(first.trace_hash);
  }

  EXPECT_EQ(traces.size(), kSeedsRunTwice);
}

TEST(Simulation, GivesUniqueNumbersThatDependOnTheSeed) {
  constexpr int kJobRanks = 3;
  constexpr std::size_t kCalls = 4;
  const auto numbers_of = [](std::uint64_t seed) {
    SimulationOptions options;
    options.ranks = {kJobRanks};
    options.seed = seed;
    return simulate_job<std::vector<std::uint64_t>>(
               options,
               [](SimulatedRank& rank) {
                 std::vector<std::uint64_t> numbers;
                 for (std::size_t i = 0; i < kCalls; ++i) numbers.push_back(rank.unique());
                 return core::Result<std::vector<std::uint64_t>>(numbers);
               })
        .ranks;
  };

  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {1, 2}) {
    const auto ranks = numbers_of(seed);
    EXPECT_EQ(ranks, numbers_of(seed));
    for (const auto& numbers : ranks) seen.insert(numbers.begin(), numbers.end());
  }

  EXPECT_EQ(seen.size(), 2 * kJobRanks * kCalls);
}

}  // namespace
}  // namespace troupe::actors
