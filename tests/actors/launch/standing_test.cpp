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

}  // namespace
}  // namespace troupe::actors
