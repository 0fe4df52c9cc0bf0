#include "actors/roles/stragglers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using core::Rank;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// All ranks tell, in order, how many milliseconds they compute for one of two lanes, and how many of these
/// they wait for a processor; what is said then.
std::vector<std::string> tell(Stragglers& stragglers, const std::vector<double>& of_ranks, double step = 60,
                              const std::vector<double>& delays = {0, 0, 0, 0}) {
  std::vector<std::string> said;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto nanoseconds = static_cast<std::int64_t>(of_ranks[rank] * 1e6);
    for (auto& text : stragglers.add({{static_cast<std::int32_t>(rank)},
                                      40,
                                      2,
                                      nanoseconds,
                                      static_cast<std::int64_t>(delays[rank] * 1e6),
                                      static_cast<std::int64_t>(step * 1e6)}))
      said.push_back(text);
  }
  return said;
}

Stragglers of_one_stage() {
  return Stragglers({{{0}, 0}, {{1}, 0}, {{2}, 0}, {{3}, 0}});
}

TEST(StragglersOfAStage, AreNamedAfterSixRounds) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 5; ++round) EXPECT_THAT(tell(stragglers, {10, 11, 25, 10}), IsEmpty()) << round;
  EXPECT_THAT(
      tell(stragglers, {10, 11, 25, 10}),
      ElementsAre("rank 2 is slow and holds up the others: it computes 25 ms for a lane, 2.5 times the 10 "
                  "ms that are usual with its part of the model (in the last 40 steps); look at its "
                  "device, its host and what its trainer reads"));
  EXPECT_THAT(tell(stragglers, {10, 11, 25, 10}), IsEmpty()) << "it is said once";
}

TEST(StragglersOfAStage, AreToldWhenTheyHaveCaughtUp) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 8; ++round) tell(stragglers, {10, 10, 25, 10});
  for (int round = 0; round < 5; ++round) EXPECT_THAT(tell(stragglers, {10, 10, 10, 10}), IsEmpty()) << round;
  EXPECT_THAT(tell(stragglers, {10, 10, 10, 10}), ElementsAre("rank 2 is as fast as the others again"));
}

TEST(StragglersOfAStage, MustBeSlowInARow) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 30; ++round)
    EXPECT_THAT(tell(stragglers, {10, 10, round % 6 == 5 ? 10.0 : 25.0, 10}), IsEmpty()) << round;
}

TEST(StragglersOfAStage, AreNotThoseWithoutAProcessor) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 5; ++round)
    EXPECT_THAT(tell(stragglers, {10, 11, 25, 10}, 60, {1, 1, 15, 0}), IsEmpty()) << round;
  EXPECT_THAT(
      tell(stragglers, {10, 11, 25, 10}, 60, {1, 1, 15, 0}),
      ElementsAre(
          "rank 2 holds up the others, as its host has more to do than it has processors: of 25 ms for "
          "a lane it waits 15 ms for one, and 10 ms are usual with its part of the model (in the last "
          "40 steps); give the host fewer ranks, or less other work"));
  for (int round = 0; round < 5; ++round) tell(stragglers, {10, 11, 25, 10});
  EXPECT_THAT(tell(stragglers, {10, 11, 25, 10}), ElementsAre(HasSubstr("rank 2 is slow")));
}

TEST(StragglersOfAStage, AreSlowAmongThoseWithoutAProcessor) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 5; ++round) tell(stragglers, {20, 20, 30, 20}, 60, {10, 10, 12, 12});
  EXPECT_THAT(tell(stragglers, {20, 20, 30, 20}, 60, {10, 10, 12, 12}),
              ElementsAre(HasSubstr("rank 2 is slow")));
}

TEST(StragglersOfAStage, AreNotJudgedByMixedRounds) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 30; ++round)
    EXPECT_THAT(tell(stragglers, {10, 10, 25, 10}, 60, {0, 0, round % 6 == 5 ? 0.0 : 15.0, 0}), IsEmpty());
}

TEST(StragglersOfAStage, GoUnmentionedBelowAThird) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 10; ++round) EXPECT_THAT(tell(stragglers, {10, 10, 13.3, 10}), IsEmpty());
}

TEST(StragglersOfAStage, AreTheSlowestAlone) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 5; ++round) tell(stragglers, {10, 18, 30, 10});
  EXPECT_THAT(tell(stragglers, {10, 18, 30, 10}), ElementsAre(HasSubstr("rank 2 is slow")));
  for (int round = 0; round < 5; ++round) EXPECT_THAT(tell(stragglers, {10, 18, 30, 10}), IsEmpty());
}

TEST(StragglersOfAStage, MakeTheStepLonger) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 10; ++round) EXPECT_THAT(tell(stragglers, {1, 1, 3, 1}, 60), IsEmpty());
  for (int round = 0; round < 5; ++round) EXPECT_THAT(tell(stragglers, {1, 1, 3, 1}, 20), IsEmpty());
  EXPECT_THAT(tell(stragglers, {1, 1, 3, 1}, 20), ElementsAre(HasSubstr("rank 2 is slow")));
}

TEST(StragglersOfAStage, AreComparedWithEachOtherAlone) {
  Stragglers stragglers({{{0}, 0}, {{1}, 0}, {{2}, 1}, {{3}, 1}});
  for (int round = 0; round < 10; ++round) EXPECT_THAT(tell(stragglers, {10, 11, 40, 41}), IsEmpty());
  for (int round = 0; round < 5; ++round) tell(stragglers, {10, 11, 40, 80});
  EXPECT_THAT(tell(stragglers, {10, 11, 40, 80}), ElementsAre(HasSubstr("rank 3 is slow")));
}

TEST(StragglersOfAStage, AreFoundAmongTwo) {
  Stragglers stragglers({{{0}, 0}, {{1}, 0}});
  for (int round = 0; round < 5; ++round) tell(stragglers, {20, 10});
  EXPECT_THAT(tell(stragglers, {20, 10}), ElementsAre(HasSubstr("rank 0 is slow")));
}

TEST(StragglersOfAStage, AreNotLookedForBeforeAllHaveTold) {
  auto stragglers = of_one_stage();
  for (int round = 0; round < 10; ++round) EXPECT_THAT(tell(stragglers, {10, 10, 25}), IsEmpty());
}

TEST(StragglersOfAStage, AreNobodyWhereARankIsAloneOrUnknown) {
  Stragglers stragglers({{{0}, 0}, {{1}, 1}});
  for (int round = 0; round < 10; ++round) EXPECT_THAT(tell(stragglers, {10, 90, 500}), IsEmpty());
}

}  // namespace
}  // namespace troupe::actors
