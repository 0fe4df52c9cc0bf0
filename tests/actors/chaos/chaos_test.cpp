#include "actors/chaos/chaos.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>

namespace troupe::actors {

void PrintTo(const PlantedName& planted, std::ostream* out) {
  *out << planted.name;
}

namespace {

bool violates(const ChaosReport& report, std::string_view invariant) {
  return std::ranges::any_of(report.violations, [&](const std::string& each) {
    return each.starts_with(std::string(invariant) + ":");
  });
}

std::optional<ChaosSchedule> first_found(const PlantedName& planted) {
  constexpr std::uint64_t kSeeds = 5000;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto schedule = drawn_schedule(seed, {});
    if (violates(run_chaos(schedule, planted.bug), planted.invariant)) return schedule;
  }
  return std::nullopt;
}

TEST(Chaos, AJobSurvivesWhateverLeavesItRecoverable) {
  ChaosCoverage coverage;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const auto schedule = drawn_schedule(seed, {});

    const auto report = run_chaos(schedule);

    ASSERT_THAT(report.violations, testing::IsEmpty()) << to_text(schedule);
    const bool is_used_up = report.restarts == schedule.setup.max_restarts;
    EXPECT_TRUE(report.exit_code == 0 || is_used_up) << to_text(schedule);
    coverage.add(report.coverage);
  }
  EXPECT_THAT(coverage.lacking(), testing::IsEmpty()) << "every kind of fault has met every phase";
}

TEST(Chaos, AScheduleIsReplayedExactly) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto schedule = drawn_schedule(seed, {});
    const auto read = parse_schedule(to_text(schedule));
    ASSERT_TRUE(read);

    const auto first = run_chaos(schedule);
    const auto again = run_chaos(*read, PlantedBug::none, true);

    EXPECT_EQ(first.trace_hash, again.trace_hash) << seed;
    EXPECT_EQ(first.events, again.events) << seed;
  }
}

TEST(Chaos, GoesOnOverSixteenNodes) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto report = run_chaos(drawn_schedule(seed, {.nodes = 16, .ranks = 2, .steps = 12, .faults = 20}));

    EXPECT_THAT(report.violations, testing::IsEmpty()) << seed;
  }
}

/// The report of a schedule that was found by a seed.
ChaosReport report_of(const char* text) {
  const auto schedule = parse_schedule(text);
  EXPECT_TRUE(schedule);
  return run_chaos(*schedule);
}

TEST(Chaos, ProcessMayEndWhileItsLauncherAwaitsItsWelcome) {
  const auto report = report_of(R"(troupe chaos 2
seed 61191
nodes 3
ranks 2
spares 0
fewest_nodes 0
fewest_ranks 0
max_restarts 200
in_place 1
journal 1
sharded 1
steps 10
save_every 2
lanes 8
fault rotten_disk target 5 other 1 at 218632 lasts 725000
fault kill_rank target 4 other 1 at 1189632 lasts 725000
fault kill_node target 0 other 1 at 218632 lasts 399000
fault rotten_disk target 5 other 0 at 218632 in saving 8 lasts 1052000
fault rotten_disk target 3 other 1 at 668031 lasts 10354000
fault rotten_disk target 2 other 1 at 18651 in rebuilding 0 lasts 4264000
fault kill_rank target 5 other 1 at 479651 in rebuilding 0 lasts 4264000
)");

  EXPECT_THAT(report.violations, testing::IsEmpty());
}

TEST(Chaos, ALaunchersNumberMayHaveGoneToAnotherMeanwhile) {
  const auto report = report_of(R"(troupe chaos 2
seed 5826
nodes 3
ranks 1
spares 0
fewest_nodes 2
fewest_ranks 0
max_restarts 200
in_place 1
journal 1
sharded 0
steps 960
save_every 4
lanes 5
fault kill_launcher target 1 other 0 at 26559 in starting 4 lasts 104000
fault kill_launcher target 2 other 1 at 26559 in deciding 0 lasts 7955000
fault cut_one_way target 1 other 2 at 327544 lasts 11000
fault cut_one_way target 1 other 0 at 1703 in deciding 8 lasts 20948000
fault cut_one_way target 2 other 0 at 37483 in restarting 0 lasts 15506000
)");

  EXPECT_THAT(report.violations, testing::IsEmpty());
}

class Planted : public testing::TestWithParam<PlantedName> {};

TEST_P(Planted, IsFoundByItsInvariant) {
  const auto found = first_found(GetParam());

  EXPECT_TRUE(found) << GetParam().invariant << " is not violated by " << GetParam().name;
}

std::string name_of_planted(const testing::TestParamInfo<PlantedName>& planted) {
  return std::string(planted.param.name);
}

INSTANTIATE_TEST_SUITE_P(Bugs, Planted, testing::ValuesIn(kPlantedNames.begin() + 1, kPlantedNames.end()),
                         name_of_planted);

TEST(Chaos, ShrinksAScheduleToFewerFaultsThatStillViolate) {
  const PlantedName planted{PlantedBug::missing_part, "missing_part", "S3"};
  std::optional<ChaosSchedule> large;
  for (std::uint64_t seed = 0; seed < 5000 && !large; ++seed) {
    const auto schedule = drawn_schedule(seed, {});
    if (schedule.faults.size() >= 4 && violates(run_chaos(schedule, planted.bug), planted.invariant))
      large = schedule;
  }
  ASSERT_TRUE(large);

  const auto small = shrunk(*large, planted.bug);

  EXPECT_LT(small.faults.size(), large->faults.size());
  EXPECT_TRUE(violates(run_chaos(small, planted.bug), planted.invariant));
  EXPECT_EQ(shrunk(small, planted.bug), small) << "nothing more can be left out";
}

TEST(Chaos, ShrinkingLeavesAScheduleThatViolatesNothing) {
  const auto schedule = drawn_schedule(1, {});

  EXPECT_EQ(shrunk(schedule), schedule);
}

}  // namespace
}  // namespace troupe::actors
