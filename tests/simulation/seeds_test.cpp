#include <gtest/gtest.h>

#include <set>

#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

constexpr std::uint64_t kSeeds = 1000;
constexpr std::uint64_t kSeedsRunTwice = 50;

TEST(Simulation, AThousandSeedsBreakNoInvariantAndAgreeInTheirBits) {
  auto options = tiny_job(core::Strategy::zero1);
  const auto reference = simulate_tiny(1, 0, options).ranks[0].state_hash;

  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    auto outcome = simulate_tiny(4, seed, options);
    ASSERT_EQ(problems_of(outcome.report), "") << "seed " << seed;
    ASSERT_EQ(outcome.report.steps_committed, 5) << "seed " << seed;
    for (const auto& rank : outcome.ranks) ASSERT_EQ(rank.state_hash, reference) << "seed " << seed;
  }
}

TEST(Simulation, TwoRunsOfASeedAreTheSameRunAndOtherSeedsAreOthers) {
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

}  // namespace
}  // namespace troupe::actors
