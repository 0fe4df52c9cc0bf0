#include "apps/troupe/bench/pipeline.hpp"

#include <gtest/gtest.h>

namespace troupe::apps {
namespace {

using core::ScheduleKind;

TEST(PipelineBench, BubblesAreWithinATenthOfTheTheory) {
  for (const int stages : {2, 4}) {
    PipelineBench bench;
    bench.stages = stages;
    bench.schedules = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                       ScheduleKind::zero_bubble};

    const auto times = measure_pipelines(bench).value();

    ASSERT_EQ(times.size(), 4U);
    for (const auto& time : times) {
      EXPECT_NEAR(time.bubble_share, time.theory, 0.1 * time.theory) << core::name_of(time.schedule.kind);
      EXPECT_GT(time.bubble_share, time.theory) << "messages take time";
    }
  }
}

TEST(PipelineBench, RefusesSchedulesWithoutAFormula) {
  PipelineBench bench;
  bench.microbatches = 2;
  bench.schedules = {ScheduleKind::one_f_one_b};

  const auto times = measure_pipelines(bench);

  ASSERT_FALSE(times);
  EXPECT_EQ(times.error().code, core::Errc::invalid_argument);
}

}  // namespace
}  // namespace troupe::apps
