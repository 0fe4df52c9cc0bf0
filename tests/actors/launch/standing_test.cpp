#include "actors/launch/standing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace troupe::actors {
namespace {

using testing::ElementsAre;
using State = Membership::State;

constexpr core::Epoch kEpoch{4};

DeclaredIn in(std::map<int, Membership> members) {
  return [members = std::move(members)](int slot) {
    const auto found = members.find(slot);
    return found == members.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Standing, EpochIsFormedWhenAllTakeSteps) {
  const auto formed = [](State last, core::Epoch epoch = kEpoch) {
    return standing_of({2, 5}, kEpoch, in({{2, {kEpoch, State::training}}, {5, {epoch, last}}})).is_formed;
  };

  EXPECT_TRUE(formed(State::training));
  EXPECT_TRUE(formed(State::waiting)) << "it has taken some";
  EXPECT_TRUE(formed(State::left));
  EXPECT_FALSE(formed(State::forming));
  EXPECT_FALSE(formed(State::stands_by));
  EXPECT_FALSE(formed(State::given_up)) << "it never was";
  EXPECT_FALSE(formed(State::training, core::Epoch{3}));
  EXPECT_FALSE(standing_of({2, 5}, kEpoch, in({{2, {kEpoch, State::training}}})).is_formed);
}

TEST(Standing, RanksThatLeftOrStayedSilentDoNotStay) {
  const auto stay = [](std::map<int, Membership> members) {
    return standing_of({0, 1}, kEpoch, in(std::move(members))).all_stay;
  };

  EXPECT_TRUE(stay({{0, {kEpoch, State::training}}, {1, {core::Epoch{2}, State::forming}}}));
  EXPECT_FALSE(stay({{0, {kEpoch, State::training}}, {1, {kEpoch, State::left}}}));
  EXPECT_FALSE(stay({{0, {kEpoch, State::training}}}));
}

TEST(Standing, OnlyThoseOfTheEpochWait) {
  const auto members = in(
      {{0, {kEpoch, State::waiting}}, {1, {core::Epoch{3}, State::waiting}}, {2, {kEpoch, State::given_up}}});

  EXPECT_THAT(waiting_of({0, 1, 2}, kEpoch, members), ElementsAre(true, false, true));
  EXPECT_THAT(standing_by({0, 7}, in({{0, {kEpoch, State::stands_by}}})), ElementsAre(true, false));
}

TEST(Standing, JobGoesOnWithNodesThatKeptTheirProcesses) {
  const FormerJob before{6, {0, 3, 4}, {{2, 1}, {2, 1}}};
  const FoundNode first{{2, 1}, 0, {}}, second{{2, 1}, 3, {0, 2}};

  const auto found = adoptable(before, {first, second});

  ASSERT_TRUE(found);
  EXPECT_EQ(found->generation, 6);
  EXPECT_THAT(found->slots, ElementsAre(0, 3, 4));
  EXPECT_THAT(found->running, ElementsAre(3, 5));
  EXPECT_FALSE(adoptable(before, {first})) << "one is missing";
  EXPECT_FALSE(adoptable(before, {first, {{2, 1}, 3, {}}})) << "it has kept none";
  EXPECT_FALSE(adoptable(before, {first, {{3, 1}, 3, {0}}})) << "it has another size";
}

}  // namespace
}  // namespace troupe::actors
