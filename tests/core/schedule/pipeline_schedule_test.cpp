#include "core/schedule/pipeline_schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> lines(const ScheduleOptions& options) {
  const auto schedule = plan_schedule(options).value();
  std::vector<std::string> found;
  for (const auto& stage : schedule.passes) {
    auto& line = found.emplace_back();
    for (const auto& pass : stage) line += (line.empty() ? "" : " ") + short_name(pass, options.chunks);
  }
  return found;
}

TEST(PipelineSchedule, GpipeDoesAllForwardsFirst) {
  EXPECT_THAT(lines({ScheduleKind::gpipe, 2, 1, 3}), ElementsAre("F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"));
}

// Figure 4 of Narayanan et al. 2021, for four stages and eight microbatches, counted from 0.
TEST(PipelineSchedule, OneForwardOneBackwardAlternatesAfterTheWarmUp) {
  EXPECT_THAT(lines({ScheduleKind::one_f_one_b, 4, 1, 8}),
              ElementsAre("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
                          "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
                          "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
                          "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"));
  EXPECT_THAT(lines({ScheduleKind::one_f_one_b, 3, 1, 1}), ElementsAre("F0 B0", "F0 B0", "F0 B0"));
}

// Megatron-Core's schedule table for 2 stages, 2 chunks, 4 microbatches: microbatches 0 1 go through both
// chunks, then 2 3; backward takes the same table with the chunks reversed. Warm-ups are 4 and 2.
TEST(PipelineSchedule, InterleavedFollowsMegatronsTable) {
  EXPECT_THAT(lines({ScheduleKind::interleaved, 2, 2, 4}),
              ElementsAre("F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
                          "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"));
}

// Figure 2 of Qi et al. 2023 in lists: the last stage keeps its weights' backwards for the end, the first
// does them at once.
TEST(PipelineSchedule, ZeroBubblePutsWeightsIntoTheLastGaps) {
  EXPECT_THAT(lines({ScheduleKind::zero_bubble, 3, 1, 4}),
              ElementsAre("F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3", "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
                          "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"));
}

// get_pp_rank_microbatches(): (stages - rank - 1) * 2 + (chunks - 1) * stages, or stages - rank - 1 with one
// chunk; at most all passes.
TEST(PipelineSchedule, WarmUpsAreMegatrons) {
  const auto all = [](const ScheduleOptions& options) {
    std::vector<int> found;
    for (int stage = 0; stage < options.stages; ++stage) found.push_back(warm_up_passes(options, stage));
    return found;
  };

  EXPECT_THAT(all({ScheduleKind::one_f_one_b, 4, 1, 8}), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(all({ScheduleKind::one_f_one_b, 4, 1, 2}), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(all({ScheduleKind::interleaved, 4, 2, 8}), ElementsAre(10, 8, 6, 4));
  EXPECT_THAT(all({ScheduleKind::interleaved, 4, 2, 4}), ElementsAre(8, 8, 6, 4));
  EXPECT_THAT(all({ScheduleKind::interleaved, 4, 1, 8}), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(all({ScheduleKind::gpipe, 2, 1, 5}), ElementsAre(5, 5));
}

TEST(PipelineSchedule, RefusesSizesThatDoNotFit) {
  const auto error = [](const ScheduleOptions& options) { return plan_schedule(options).error().message; };

  EXPECT_THAT(error({ScheduleKind::one_f_one_b, 0, 1, 1}),
              HasSubstr("stages must lie in 1..1048576, found 0"));
  EXPECT_THAT(error({ScheduleKind::one_f_one_b, 4, 2, 8}),
              HasSubstr("has one chunk in 1f1b schedules, found 2; use interleaved"));
  EXPECT_THAT(error({ScheduleKind::interleaved, 4, 2, 6}),
              HasSubstr("of 4 stages needs a multiple of as many microbatches, found 6"));
  EXPECT_THAT(error({ScheduleKind::gpipe, 1 << 20, 1, 1 << 20}), HasSubstr("are more than 16777216 passes"));
  EXPECT_THAT(schedule_kind_from_name("2f2b").error().message, HasSubstr("use gpipe, 1f1b, interleaved"));
  EXPECT_EQ(schedule_kind_from_name("zero_bubble").value(), ScheduleKind::zero_bubble);
}

}  // namespace
}  // namespace troupe::core
