#include "apps/troupe/plan/goodput.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"

namespace troupe::apps {
namespace {

using testing::HasSubstr;

/// Some 400 failures in 54 days.
GoodputArguments small_job() {
  GoodputArguments arguments;
  arguments.ranks = 64;
  arguments.runs = 20;
  arguments.mtbf_hours = 200;
  arguments.node_share = 0;
  arguments.write = 90;  // more than one of the intervals below
  return arguments;
}

GoodputRun mean_of(const GoodputArguments& arguments, double save_every) {
  GoodputRun mean;
  for (int run = 0; run < arguments.runs; ++run) {
    const auto found = simulate_goodput(arguments, save_every, static_cast<std::uint64_t>(run));
    EXPECT_TRUE(found);
    mean.failures += found->failures;
    mean.lost.saving += found->lost.saving / arguments.runs;
    mean.lost.recovering += found->lost.recovering / arguments.runs;
    mean.lost.again += found->lost.again / arguments.runs;
    mean.lost.waiting += found->lost.waiting / arguments.runs;
    mean.lost.fewer += found->lost.fewer / arguments.runs;
  }
  return mean;
}

/// Poisson failures, each of which costs a recovery R and, on average, half an interval I between saves and
/// the time W until one can be loaded, with M between failures: stall / (I + stall) + (R + I / 2 + W) / M of
/// the time, where failures during recovery are rare.
TEST(Goodput, MatchesTheFirstOrderFormulaForRareFailures) {
  const auto arguments = small_job();
  for (const double interval : {60.0, 300.0, 900.0}) {
    const double between = arguments.mtbf_hours * 3600 / arguments.ranks;
    const double recovery = arguments.notice + arguments.start + arguments.form + arguments.load;
    const double expected = arguments.stall / (interval + arguments.stall) +
                            (recovery + interval / 2 + arguments.write) / between;

    const auto mean = mean_of(arguments, interval);

    // With n failures, the mean of what each costs is known up to a few times 1 / sqrt(n).
    EXPECT_GT(mean.failures, 6000);
    EXPECT_NEAR(mean.lost.sum(), expected, 0.06 * expected) << interval;
  }
}

TEST(Goodput, LosesNoStepWhereEachRanksStateIsDoubled) {
  auto arguments = small_job();
  arguments.replicated = true;

  const auto mean = mean_of(arguments, 300);

  EXPECT_EQ(mean.lost.again, 0);
  EXPECT_GT(mean.lost.recovering, 0);
}

TEST(Goodput, WaitsForNodesUnlessSparesExistOrFewerSuffice) {
  auto arguments = small_job();
  arguments.node_share = 1;
  arguments.mtbf_hours = 5000;

  const auto waits = mean_of(arguments, 300).lost;
  arguments.spare_nodes = 4;
  const auto has_others = mean_of(arguments, 300).lost;
  arguments.spare_nodes = 0;
  arguments.fewest_nodes = 4;
  const auto goes_on = mean_of(arguments, 300).lost;

  // One of 64 devices fails every 78 hours, and its node is back after 24.
  EXPECT_NEAR(waits.waiting, 24.0 / (24 + 5000.0 / 64), 0.04);
  EXPECT_LT(has_others.waiting, 0.01);
  EXPECT_LT(goes_on.waiting, 0.01);
  EXPECT_GT(goes_on.fewer, 0.5 * waits.waiting / 8) << "an eighth of the devices, as long as a node is away";
  EXPECT_EQ(waits.fewer, 0);
}

TEST(Goodput, FollowsFromTheSeed) {
  const auto arguments = small_job();
  const auto first = simulate_goodput(arguments, 300, 5);
  const auto again = simulate_goodput(arguments, 300, 5);
  const auto other = simulate_goodput(arguments, 300, 6);

  EXPECT_EQ(first->lost.sum(), again->lost.sum());
  EXPECT_NE(first->lost.sum(), other->lost.sum());
}

TEST(Goodput, ShowsSeveralIntervalsBetweenSaves) {
  auto arguments = small_job();
  arguments.runs = 2;

  EXPECT_THAT(report_goodput(arguments).value(), HasSubstr("Young's interval is"));
  arguments.ranks = 65;
  EXPECT_THAT(report_goodput(arguments).error().message, HasSubstr("not a whole number of nodes"));
}

}  // namespace
}  // namespace troupe::apps
