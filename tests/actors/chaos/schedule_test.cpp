#include "actors/chaos/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace troupe::actors {
namespace {

TEST(ChaosSchedule, IsTheSameOnceWrittenAndRead) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto schedule = drawn_schedule(seed, {});

    const auto read = parse_schedule(to_text(schedule));

    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, schedule) << to_text(schedule);
  }
}

TEST(ChaosSchedule, DependsOnItsSeed) {
  EXPECT_EQ(drawn_schedule(7, {}), drawn_schedule(7, {}));
  EXPECT_FALSE(drawn_schedule(7, {}) == drawn_schedule(8, {}));
}

TEST(ChaosSchedule, StaysWithinItsBounds) {
  const ChaosBounds bounds{.nodes = 4, .ranks = 2, .spares = 1, .steps = 12, .faults = 3};
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const auto schedule = drawn_schedule(seed, bounds);

    EXPECT_LE(schedule.setup.nodes, 4);
    EXPECT_LE(schedule.setup.ranks, 2);
    EXPECT_LE(schedule.setup.spares, 1);
    EXPECT_GE(schedule.faults.size(), 1u);
    for (const auto& fault : schedule.faults) {
      EXPECT_TRUE(fault.kind != ChaosKind::kill_leader || schedule.setup.journal);
    }
  }
}

TEST(ChaosSchedule, SaysWhichLineIsWrong) {
  const auto error_of = [](const std::string& text) {
    const auto parsed = parse_schedule(text);
    return parsed ? std::string("none") : parsed.error().message;
  };

  EXPECT_THAT(error_of(""), testing::HasSubstr("is empty"));
  EXPECT_THAT(error_of("troupe chaos 1\n"), testing::HasSubstr("line 1"));
  const std::string heading = "troupe chaos 2\n";
  for (const std::string line :
       {"fault", "fault nonsense at 1", "fault kill_rank at", "fault kill_rank target -1", "seed",
        "seed 99999999999999999999999", "nodes 0", "nodes 99999", "in_place 2", "steps", "unknown 1",
        "fault kill_rank in nowhere 1", "fault kill_rank in saving", "fault kill_rank at 1 2"}) {
    EXPECT_THAT(error_of(heading + "# a comment\n" + line + "\n"), testing::HasSubstr("line 3")) << line;
  }
  EXPECT_THAT(error_of(heading + "nodes 2\nranks 2\nlanes 3\n"), testing::HasSubstr("lanes"));
  EXPECT_THAT(error_of(heading + "nodes 2\nfewest_nodes 3\n"), testing::HasSubstr("at least 3 nodes"));
}

}  // namespace
}  // namespace troupe::actors
