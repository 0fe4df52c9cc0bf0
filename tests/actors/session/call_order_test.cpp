#include "actors/session/call_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using testing::HasSubstr;

std::string refused(const core::Result<void>& called) {
  if (called) return "nothing was refused";
  EXPECT_EQ(called.error().code, core::Errc::invalid_argument);
  return called.error().message;
}

/// Two lanes, 2 and 3, of two microbatches each.
CallOrder two_lanes() {
  return CallOrder({{2}, {3}}, 2, 5);
}

void play(CallOrder& order, core::Lane lane) {
  ASSERT_TRUE(order.begin_lane(lane));
  ASSERT_TRUE(order.begin_microbatch(0));
  ASSERT_FALSE(order.is_last_microbatch());
  ASSERT_TRUE(order.begin_microbatch(1));
  ASSERT_TRUE(order.is_last_microbatch());
  ASSERT_TRUE(order.end_lane());
}

TEST(CallOrder, TakesStepsAsTheyAreMeant) {
  auto order = two_lanes();
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(order.between_steps("save()"));
    ASSERT_TRUE(order.begin_step());
    play(order, {2});
    play(order, {3});
    ASSERT_TRUE(order.finish_step());
  }
  EXPECT_TRUE(order.leave());
}

TEST(CallOrder, TakesOneMicrobatchUnannounced) {
  CallOrder order({{0}}, 1, 1);
  ASSERT_TRUE(order.begin_step());
  ASSERT_TRUE(order.begin_lane({0}));
  EXPECT_TRUE(order.is_last_microbatch());
  EXPECT_TRUE(order.end_lane());
  EXPECT_TRUE(order.finish_step());
}

TEST(CallOrder, SaysWhatShouldHaveBeenCalledBeforeAStep) {
  auto order = two_lanes();
  EXPECT_THAT(refused(order.begin_lane({2})),
              HasSubstr("begin_lane() was called out of turn: no step has begun; "
                        "call begin_step() first"));
  EXPECT_THAT(refused(order.finish_step()), HasSubstr("call begin_step() first"));
  EXPECT_THAT(refused(order.in_lane("gradient()")), HasSubstr("gradient() was called out of turn"));
  EXPECT_THAT(refused(order.end_lane()), HasSubstr("call begin_step() first"));
}

TEST(CallOrder, SaysWhichLaneIsNext) {
  auto order = two_lanes();
  ASSERT_TRUE(order.begin_step());
  EXPECT_THAT(refused(order.begin_lane({3})), HasSubstr("call begin_lane(2)"));
  play(order, {2});
  EXPECT_THAT(refused(order.begin_lane({2})), HasSubstr("call begin_lane(3)"));
  EXPECT_THAT(refused(order.finish_step()), HasSubstr("1 of 2 lanes have ended"));
  play(order, {3});
  EXPECT_THAT(refused(order.begin_lane({2})), HasSubstr("call finish_step()"));
  EXPECT_TRUE(order.finish_step()) << "a refused call changes nothing";
}

// Covers unit-31.
TEST(CallOrder, SaysWhichMicrobatchIsNext) {
  auto order = two_lanes();
  ASSERT_TRUE(order.begin_step());
  ASSERT_TRUE(order.begin_lane({2}));
  EXPECT_THAT(refused(order.begin_lane({3})), HasSubstr("lane 2 has begun; call end_lane() first"));
  EXPECT_THAT(refused(order.end_lane()),
              HasSubstr("after microbatch 0 of 2; call begin_microbatch(1) first"));
  for (int wrong : {-1, 2, 1000}) {
    EXPECT_THAT(refused(order.begin_microbatch(wrong)), HasSubstr("call begin_microbatch(1)")) << wrong;
  }
  ASSERT_TRUE(order.begin_microbatch(1));
  for (int wrong : {0, 1, 2}) {
    EXPECT_THAT(refused(order.begin_microbatch(wrong)), HasSubstr("call end_lane()")) << wrong;
  }
  EXPECT_TRUE(order.end_lane());
}

TEST(CallOrder, KeepsWhatIsBetweenStepsOutOfThem) {
  auto order = two_lanes();
  ASSERT_TRUE(order.begin_step());
  for (const char* call : {"save()", "restore()", "begin_step()"}) {
    EXPECT_THAT(refused(order.between_steps(call)), HasSubstr(std::string(call) + " was called out of turn"));
  }
  EXPECT_THAT(refused(order.leave()), HasSubstr("call finish_step() first"));
  ASSERT_TRUE(order.begin_lane({2}));
  EXPECT_THAT(refused(order.between_steps("save()")), HasSubstr("call end_lane() first"));
}

TEST(CallOrder, KeepsStepsOutOfAnEvaluationAndGradientsToo) {
  auto order = two_lanes();
  EXPECT_THAT(refused(order.end_evaluation()), HasSubstr("no evaluation has begun"));
  EXPECT_THAT(refused(order.reads("acquire()")), HasSubstr("acquire() was called out of turn"));
  ASSERT_TRUE(order.begin_evaluation());
  EXPECT_TRUE(order.reads("acquire()"));
  const std::string why = "an evaluation has begun; call end_evaluation() first";
  EXPECT_THAT(refused(order.begin_step()), HasSubstr(why));
  EXPECT_THAT(refused(order.begin_evaluation()), HasSubstr(why));
  EXPECT_THAT(refused(order.begin_learning()), HasSubstr(why));
  EXPECT_THAT(refused(order.in_lane("gradient()")), HasSubstr(why));
  EXPECT_THAT(refused(order.between_steps("save()")), HasSubstr(why));
  EXPECT_THAT(refused(order.leave()), HasSubstr(why));
  ASSERT_TRUE(order.end_evaluation());
  EXPECT_TRUE(order.begin_step());
  EXPECT_THAT(refused(order.end_evaluation()), HasSubstr("no evaluation has begun"));
}

TEST(CallOrder, KnowsWhenTheFirstStepHasBegun) {
  auto order = two_lanes();
  EXPECT_TRUE(order.before_first_step("compute_stream()"));
  ASSERT_TRUE(order.begin_step());
  play(order, {2});
  play(order, {3});
  ASSERT_TRUE(order.finish_step());
  EXPECT_THAT(refused(order.before_first_step("compute_stream()")),
              HasSubstr("compute_stream() was called after the first step of the session had begun"));
}

TEST(CallOrder, KnowsItsParameters) {
  auto order = two_lanes();
  EXPECT_TRUE(order.has_parameter({4}));
  EXPECT_THAT(refused(order.has_parameter({5})), HasSubstr("there is no parameter 5: the session has 5"));
}

TEST(CallOrder, TakesNothingAfterLeaving) {
  auto order = two_lanes();
  ASSERT_TRUE(order.leave());
  for (const auto& called : {order.begin_step(), order.begin_lane({2}), order.finish_step(), order.leave(),
                             order.between_steps("save()"), order.has_parameter({0})}) {
    EXPECT_THAT(refused(called), HasSubstr("the session was left; make another one"));
  }
}

}  // namespace
}  // namespace troupe::actors
