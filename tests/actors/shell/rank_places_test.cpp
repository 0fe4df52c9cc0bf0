#include "actors/shell/rank_places.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

struct Said {
  std::uint64_t host;
  int local_rank;
  int local_world;
};

std::optional<core::Error> check(const std::vector<Said>& ranks,
                                 const std::string& source = "MPI_LOCALRANKID and MPI_LOCALNRANKS") {
  std::vector<RankPlace> places;
  for (const Said& said : ranks) {
    places.push_back({said.host, "n" + std::to_string(said.host), said.local_rank, said.local_world, source});
  }
  return misplaced_rank(places);
}

TEST(RankPlaces, MayBeWhatTheLauncherSays) {
  EXPECT_FALSE(check({{1, 0, 2}, {1, 1, 2}, {2, 0, 2}, {2, 1, 2}}));
  EXPECT_FALSE(check({{1, 0, 2}, {2, 0, 2}, {1, 1, 2}, {2, 1, 2}})) << "in turn";
  EXPECT_FALSE(check({{1, 0, 3}, {1, 1, 3}, {1, 2, 3}, {2, 0, 1}})) << "uneven";
  EXPECT_FALSE(check({{1, 0, 1}, {2, 0, 1}}));
}

TEST(RankPlaces, MayBePartsOfOneMachine) {
  EXPECT_FALSE(check({{1, 0, 2}, {1, 1, 2}, {1, 0, 2}, {1, 1, 2}}));
  EXPECT_FALSE(check({{1, 0, 2}, {1, 1, 2}, {1, 0, 1}}));
}

TEST(RankPlaces, MayHideLocalRanksFromRanksWithOwnGpus) {
  EXPECT_FALSE(check({{1, 0, 2}, {1, 0, 2}, {2, 0, 2}, {2, 0, 2}}));
}

TEST(RankPlaces, TravelAsLines) {
  for (const RankPlace& place :
       {RankPlace{7, "n1", 1, 2, "LOCAL_RANK and LOCAL_WORLD_SIZE"}, RankPlace{1, "n2", 0, 1, ""}}) {
    const auto read = place_from_line(to_line(place));

    ASSERT_TRUE(read);
    EXPECT_EQ(*read, place);
  }
  EXPECT_FALSE(place_from_line("n1"));
}

TEST(RankPlaces, AreFewerForALauncherThatCombinesTwo) {
  const auto error = check({{1, 0, 4}, {1, 1, 4}, {2, 2, 4}, {2, 3, 4}});

  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, core::Errc::mismatch);
  EXPECT_THAT(error->message, HasSubstr("MPI_LOCALNRANKS say that rank 0 is one of 4 ranks of its host"));
  EXPECT_THAT(error->message, HasSubstr("on n1 there are ranks 0, 1"));
  EXPECT_THAT(error->message, HasSubstr("set LOCAL_RANK and LOCAL_WORLD_SIZE"));
}

TEST(RankPlaces, NameARankThatIsElsewhere) {
  const auto error = check({{1, 0, 2}, {1, 1, 2}, {1, 0, 2}, {2, 1, 2}});

  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("on n1 there are ranks 0, 1, 2"));
}

TEST(RankPlaces, NameTwoRanksWithOneLocalRank) {
  const auto error = check({{1, 0, 2}, {1, 1, 2}, {2, 1, 2}, {2, 1, 2}});

  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("rank 2 is said to have local rank 1 of 2 on n2"));
}

TEST(RankPlaces, SayThatNothingTellsThem) {
  const auto error = check({{1, 0, 2}, {2, 1, 2}}, "");

  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("neither LOCAL_RANK and LOCAL_WORLD_SIZE nor"));
}

}  // namespace
}  // namespace troupe::actors
