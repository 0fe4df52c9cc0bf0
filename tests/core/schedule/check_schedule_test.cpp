#include "core/schedule/check_schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PipelineSchedule schedule_of(const ScheduleOptions& options) {
  return plan_schedule(options).value();
}

std::string error(const PipelineSchedule& schedule, int room = 1) {
  const auto checked = check_schedule(schedule, room);
  return checked ? "passes" : checked.error().message;
}

TEST(CheckSchedule, CountsTheActivationsThatEachStageKeeps) {
  const auto peaks = [](const ScheduleOptions& options) {
    return check_schedule(schedule_of(options)).value().peak_activations;
  };

  EXPECT_THAT(peaks({ScheduleKind::gpipe, 4, 1, 8}), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(peaks({ScheduleKind::one_f_one_b, 4, 1, 8}), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(peaks({ScheduleKind::interleaved, 4, 2, 8}), ElementsAre(11, 9, 7, 5));
  // What the paper says of ZB-H1: no stage keeps more than the first one of 1F1B.
  EXPECT_THAT(peaks({ScheduleKind::zero_bubble, 4, 1, 8}), ElementsAre(4, 4, 4, 4));
}

TEST(CheckSchedule, NamesThePassThatIsMissingOrTooMuch) {
  const auto whole = schedule_of({ScheduleKind::one_f_one_b, 2, 1, 3});
  auto schedule = whole;
  schedule.passes[1].pop_back();
  EXPECT_EQ(error(schedule), "stage 1 never does the backward of microbatch 2 in chunk 0");
  schedule = whole;
  schedule.passes[0].push_back({PassKind::forward, 1, 0});
  EXPECT_EQ(error(schedule), "stage 0 does the forward of microbatch 1 in chunk 0 twice");
  schedule = whole;
  schedule.passes[0][0].microbatch = 3;
  EXPECT_EQ(error(schedule),
            "stage 0 has a forward of microbatch 3 in chunk 0, but there are 3 microbatches and 1 chunks");
  schedule = whole;
  std::swap(schedule.passes[1][0], schedule.passes[1][1]);
  EXPECT_EQ(error(schedule), "stage 1 does the backward of microbatch 0 in chunk 0 before its forward");
  schedule = whole;
  schedule.passes.pop_back();
  EXPECT_THAT(error(schedule), HasSubstr("expected a list of passes for each of 2 stages, found 1"));
}

TEST(CheckSchedule, NamesWhatIsWrongWithSplitBackwards) {
  const auto whole = schedule_of({ScheduleKind::zero_bubble, 1, 1, 1});
  auto schedule = whole;
  std::swap(schedule.passes[0][1], schedule.passes[0][2]);
  EXPECT_EQ(error(schedule),
            "stage 0 does the backward_weight of microbatch 0 in chunk 0 before that of its inputs");
  schedule = whole;
  schedule.passes[0].pop_back();
  EXPECT_EQ(error(schedule), "stage 0 never does the backward_weight of microbatch 0 in chunk 0");
  schedule = whole;
  schedule.passes[0].push_back({PassKind::backward, 0, 0});
  EXPECT_THAT(error(schedule), HasSubstr("beside a backward that is not split"));
}

TEST(CheckSchedule, NamesMessagesThatNeighboursTakeInAnotherOrder) {
  auto schedule = schedule_of({ScheduleKind::gpipe, 2, 1, 2});
  std::swap(schedule.passes[1][0], schedule.passes[1][1]);

  EXPECT_EQ(error(schedule),
            "stage 1 wants the activations of microbatch 1 (chunk 0) from stage 0 as message 0, which sends "
            "microbatch 0 (chunk 0) then");
}

TEST(CheckSchedule, NamesWhoWaitsForWhomWhenAllStandStill) {
  auto schedule = schedule_of({ScheduleKind::gpipe, 2, 1, 2});
  // F0 B0 F1 B1 beside F0 F1 B0 B1.
  std::swap(schedule.passes[0][1], schedule.passes[0][2]);

  EXPECT_EQ(
      error(schedule),
      "the stages wait for each other for ever: stage 0 waits for what B0 needs of stage 1; stage 1 waits "
      "for what F1 needs of stage 0");
}

TEST(CheckSchedule, RoomDecidesWhetherTwoSendersWaitForEachOther) {
  // The first stage sends all it has before it receives anything, the last one sends from the first on.
  auto schedule = schedule_of({ScheduleKind::gpipe, 2, 1, 5});
  schedule.passes[1] = schedule_of({ScheduleKind::one_f_one_b, 2, 1, 5}).passes[1];

  EXPECT_EQ(error(schedule, 1),
            "the stages wait for each other for ever: stage 0 waits to send what F3 made to stage 1; stage 1 "
            "waits to send what B1 made to stage 0");
  EXPECT_EQ(error(schedule, 2), "passes");
}

TEST(CheckSchedule, OnOneStageChunksFollowEachOther) {
  EXPECT_EQ(error(schedule_of({ScheduleKind::interleaved, 1, 3, 4})), "passes");
  auto schedule = schedule_of({ScheduleKind::interleaved, 1, 2, 1});
  std::swap(schedule.passes[0][0], schedule.passes[0][1]);
  EXPECT_EQ(error(schedule), "stage 0 does the forward of microbatch 0 in chunk 1 before that of chunk 0");
}

TEST(CheckSchedule, EveryPlannedScheduleOfManySizesPasses) {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      for (const auto kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
        ASSERT_EQ(error(schedule_of({kind, stages, 1, microbatches})), "passes")
            << name_of(kind) << " " << stages << " " << microbatches;
    }
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int groups = 1; groups <= 4; ++groups)
        ASSERT_EQ(error(schedule_of({ScheduleKind::interleaved, stages, chunks, groups * stages})), "passes")
            << stages << " " << chunks << " " << groups;
    }
  }
}

TEST(CheckSchedule, TheClockGivesTheBubbleOfTheory) {
  const PassDurations even{.forward = 1, .backward_input = 1, .backward_weight = 1};
  const PassDurations uneven{.forward = 10, .backward_input = 12, .backward_weight = 8};
  constexpr int kRoom = 1 << 20;
  for (int stages = 1; stages <= 8; ++stages) {
    for (int groups = 1; groups <= 4; ++groups) {
      for (const auto& options : {ScheduleOptions{ScheduleKind::gpipe, stages, 1, groups * stages},
                                  ScheduleOptions{ScheduleKind::one_f_one_b, stages, 1, groups * stages + 1},
                                  ScheduleOptions{ScheduleKind::zero_bubble, stages, 1, groups * stages + 1},
                                  ScheduleOptions{ScheduleKind::interleaved, stages, 3, groups * stages}}) {
        for (const auto& durations : {even, uneven}) {
          const auto run = run_schedule(schedule_of(options), durations, kRoom);
          EXPECT_NEAR(run.bubble_share(), theoretical_bubble_share(options, durations).value(), 1e-12)
              << name_of(options.kind) << " " << stages << " " << options.microbatches;
        }
      }
    }
  }
}

TEST(CheckSchedule, TheoryIsThePublishedFormulas) {
  const auto share = [](const ScheduleOptions& options) {
    return theoretical_bubble_share(options, {}).value();
  };

  EXPECT_DOUBLE_EQ(share({ScheduleKind::one_f_one_b, 4, 1, 8}), 3.0 / 11);
  EXPECT_DOUBLE_EQ(share({ScheduleKind::interleaved, 4, 2, 8}), 3.0 / 19);
  // A third of 1F1B's bubble of 3 * 3 where all three passes take as long.
  EXPECT_DOUBLE_EQ(share({ScheduleKind::zero_bubble, 4, 1, 8}), 3.0 / 27);
  EXPECT_FALSE(theoretical_bubble_share({ScheduleKind::one_f_one_b, 4, 1, 3}, {}));
  EXPECT_FALSE(theoretical_bubble_share({ScheduleKind::zero_bubble, 4, 1, 8}, {.backward_weight = 2}));
}

TEST(CheckSchedule, TransfersLengthenTheWayThroughAllStages) {
  const auto schedule = schedule_of({ScheduleKind::one_f_one_b, 3, 1, 1});
  const PassDurations durations{.forward = 2, .backward_input = 3, .backward_weight = 1, .transfer = 0.5};

  const auto run = run_schedule(schedule, durations, 1);

  EXPECT_DOUBLE_EQ(run.total(), 3 * 2 + 3 * 4 + 4 * 0.5);
  EXPECT_DOUBLE_EQ(run.stages[2][0].start, 5);
}

/// Whatever is done to a schedule, it is refused with a reason, or all of its passes are done.
RC_GTEST_PROP(CheckScheduleProperty, ChangedSchedulesAreRefusedOrRun, ()) {
  const int stages = *rc::gen::inRange(1, 5), groups = *rc::gen::inRange(1, 4);
  const int chunks = *rc::gen::inRange(1, 4);
  const auto options =
      *rc::gen::element(ScheduleOptions{ScheduleKind::interleaved, stages, chunks, groups * stages},
                        ScheduleOptions{ScheduleKind::zero_bubble, stages, 1, groups});
  auto schedule = schedule_of(options);
  for (int change = *rc::gen::inRange(1, 4); change > 0; --change) {
    auto& passes = schedule.passes[*rc::gen::inRange<std::size_t>(0, schedule.passes.size())];
    const auto a = *rc::gen::inRange<std::size_t>(0, passes.size());
    const auto b = *rc::gen::inRange<std::size_t>(0, passes.size());
    std::swap(passes[a], passes[b]);
  }

  const auto checked = check_schedule(schedule);

  if (!checked) return RC_ASSERT(!checked.error().message.empty());
  const auto run = run_schedule(schedule, {}, 1);
  RC_ASSERT(run.waits.empty());
  for (std::size_t stage = 0; stage < schedule.passes.size(); ++stage)
    RC_ASSERT(run.stages[stage].size() == schedule.passes[stage].size());
}

}  // namespace
}  // namespace troupe::core
