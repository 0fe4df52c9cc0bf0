#include "core/checkpoint/cliques.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr CopyName kOld{StepCount{1}, 11};
constexpr CopyName kNew{StepCount{2}, 22};

Clique ranks(std::initializer_list<std::int32_t> numbers) {
  Clique clique;
  for (auto number : numbers) clique.push_back({number});
  return clique;
}

HeldCopy copy_of(std::int32_t owner, const CopyName& name, std::int32_t world = 4) {
  return {name, Rank{owner}, 100, {world}, 0, {}};
}

/// Every rank holds all copies of its clique.
void replicate(Holdings& holdings, const std::vector<Clique>& cliques, const CopyName& name) {
  for (const auto& clique : cliques) {
    for (auto holder : clique) {
      for (auto owner : clique)
        holdings[static_cast<std::size_t>(holder.value)].push_back(copy_of(owner.value, name));
    }
  }
}

TEST(Cliques, AreAJumpApart) {
  const auto cliques = make_cliques(WorldSize{32}, 8, 2);

  ASSERT_TRUE(cliques);
  ASSERT_EQ(cliques->size(), 16u);
  for (std::int32_t i = 0; i < 8; ++i) {
    EXPECT_EQ((*cliques)[static_cast<std::size_t>(i)], ranks({i, i + 8}));
    EXPECT_EQ((*cliques)[static_cast<std::size_t>(i + 8)], ranks({i + 16, i + 24}));
  }
}

TEST(Cliques, OfOneRankEachKeepNoCopiesOfOthers) {
  EXPECT_THAT(make_cliques(WorldSize{3}, 1, 1).value(), ElementsAre(ranks({0}), ranks({1}), ranks({2})));
}

TEST(Cliques, OfJumpTwoAndFactorFourSplitEightRanks) {
  EXPECT_THAT(make_cliques(WorldSize{8}, 2, 4).value(),
              ElementsAre(ranks({0, 2, 4, 6}), ranks({1, 3, 5, 7})));
}

TEST(Cliques, AreRefusedWhenTheyDoNotDivideTheWorld) {
  for (const auto& [jump, factor] : {std::pair{0, 2}, {2, 0}, {-1, 1}, {4, 4}, {3, 1}, {1 << 30, 1 << 30}}) {
    const auto cliques = make_cliques(WorldSize{8}, jump, factor);

    ASSERT_FALSE(cliques) << jump << ", " << factor;
    EXPECT_EQ(cliques.error().code, Errc::invalid_argument);
    EXPECT_THAT(cliques.error().message, HasSubstr("8 ranks"));
  }
}

TEST(Cliques, AreSpreadOverAnyNumberOfRanks) {
  EXPECT_THAT(spread_cliques(WorldSize{5}, 2), ElementsAre(ranks({0, 2, 4}), ranks({1, 3})));
  EXPECT_THAT(spread_cliques(WorldSize{3}, 2), ElementsAre(ranks({0, 1, 2})));
  EXPECT_THAT(spread_cliques(WorldSize{2}, 3), ElementsAre(ranks({0, 1})));
  EXPECT_THAT(spread_cliques(WorldSize{2}, 1), ElementsAre(ranks({0}), ranks({1})));
  EXPECT_EQ(spread_cliques(WorldSize{4}, 2), make_cliques(WorldSize{4}, 2, 2));
}

RC_GTEST_PROP(Cliques, ThatAreSpreadHaveTheFactorAndCoverAll, ()) {
  const WorldSize world{*rc::gen::inRange(1, 200)};
  const int factor = *rc::gen::inRange(1, 20);

  const auto cliques = spread_cliques(world, factor);

  RC_ASSERT(sorted_cliques(world, cliques) == cliques);
  for (const auto& clique : cliques) {
    RC_ASSERT(clique.size() >= static_cast<std::size_t>(std::min(factor, world.value)));
    RC_ASSERT(clique.size() < 2 * static_cast<std::size_t>(factor));
  }
}

TEST(Cliques, ThatAreGivenMayBeOfAnySize) {
  const auto cliques =
      sorted_cliques(WorldSize{8}, {ranks({2, 6, 7}), ranks({3, 1}), ranks({5}), ranks({0, 4})});

  ASSERT_TRUE(cliques) << cliques.error().message;
  EXPECT_THAT(*cliques, ElementsAre(ranks({2, 6, 7}), ranks({1, 3}), ranks({5}), ranks({0, 4})));
  EXPECT_EQ(clique_of(Rank{3}, *cliques), ranks({1, 3}));
}

TEST(Cliques, ThatAreGivenMustPartitionTheWorld) {
  const auto complaint = [](std::vector<Clique> cliques) {
    const auto sorted = sorted_cliques(WorldSize{3}, std::move(cliques));
    return sorted ? "none" : sorted.error().message;
  };

  EXPECT_THAT(complaint({ranks({0, 1})}), HasSubstr("rank 2 is in no clique"));
  EXPECT_THAT(complaint({ranks({0, 1}), ranks({1, 2})}), HasSubstr("rank 1 is in two"));
  EXPECT_THAT(complaint({ranks({0, 1, 1}), ranks({2})}), HasSubstr("rank 1 is in two"));
  EXPECT_THAT(complaint({ranks({0, 1, 2, 3})}), HasSubstr("names rank 3"));
  EXPECT_THAT(complaint({ranks({0, 1, 2, -1})}), HasSubstr("names rank -1"));
}

CopyGiver from(std::int32_t rank) {
  return {{rank}, {rank}, 0};
}

class Latest : public testing::Test {
 protected:
  Latest() : cliques_(make_cliques(WorldSize{4}, 2, 2).value()), holdings_(4) {
    replicate(holdings_, cliques_, kOld);
    replicate(holdings_, cliques_, kNew);
  }
  void lose(std::int32_t holder, CopyName name, std::int32_t owner) {
    std::erase_if(holdings_[static_cast<std::size_t>(holder)],
                  [&](const HeldCopy& copy) { return copy.name == name && copy.owner == Rank{owner}; });
  }

  std::vector<Clique> cliques_;  ///< {0, 2}, {1, 3}
  Holdings holdings_;
};

TEST_F(Latest, IsTheNewestOfAllWhenNothingIsLost) {
  EXPECT_EQ(find_latest(holdings_, cliques_).name, kNew);
  EXPECT_THAT(find_latest(holdings_, cliques_).passed_over, IsEmpty());
}

TEST_F(Latest, SurvivesTheLossOfARank) {
  holdings_[2].clear();

  EXPECT_EQ(find_latest(holdings_, cliques_).name, kNew);
}

TEST_F(Latest, IsOlderWhenACliqueLacksACopy) {
  lose(0, kNew, 2);
  lose(2, kNew, 2);

  const auto latest = find_latest(holdings_, cliques_);

  EXPECT_EQ(latest.name, kOld);
  EXPECT_THAT(latest.passed_over,
              ElementsAre("the local save after step 2: the clique [0, 2] holds no copy of rank 2"));
}

TEST_F(Latest, HasGiversWhereAnotherCliqueHoldsACopy) {
  lose(0, kNew, 2);
  lose(2, kNew, 2);
  holdings_[1].push_back(copy_of(2, kNew));

  const auto latest = find_latest(holdings_, cliques_);

  EXPECT_EQ(latest.name, kNew);
  EXPECT_THAT(latest.givers, ElementsAre(from(0), from(1), from(1), from(3)));
  EXPECT_THAT(latest.passed_over, IsEmpty());
}

TEST_F(Latest, IsJudgedByThePresentCliques) {
  const std::vector<Clique> others{ranks({0, 1}), ranks({2, 3})};
  holdings_[0].clear();

  EXPECT_THAT(find_latest(holdings_, cliques_).givers, IsEmpty());
  EXPECT_THAT(find_latest(holdings_, others).givers, ElementsAre(from(2), from(1), from(2), from(3)));
}

TEST_F(Latest, HasGiversForAnotherNumberOfRanks) {
  // The process of rank 1 is lost, and that of rank 3 is rank 1 now.
  holdings_[1] = holdings_[3];
  holdings_.resize(3);
  const std::vector<Clique> alone{ranks({0}), ranks({1}), ranks({2})};

  const auto latest = find_latest(holdings_, alone);

  EXPECT_EQ(latest.name, kNew);
  EXPECT_THAT(latest.givers, ElementsAre(from(0), from(1), from(2), from(1)));
}

TEST_F(Latest, HasGiversForRanksThatWantOtherThings) {
  EXPECT_THAT(find_latest(holdings_, cliques_, std::vector<std::uint64_t>{0, 0, 0, 0}).givers, IsEmpty());
  EXPECT_THAT(find_latest(holdings_, cliques_, std::vector<std::uint64_t>{0, 0, 9, 0}).givers, SizeIs(4));
}

TEST_F(Latest, TakesCopiesFromStoragesBeside) {
  holdings_[2].clear();
  for (auto& copy : holdings_[0]) copy.beside = Rank{2};

  EXPECT_THAT(find_latest(holdings_, cliques_).givers,
              ElementsAre(CopyGiver{{0}, {2}, 0}, from(1), CopyGiver{{0}, {2}, 0}, from(3)));
}

TEST_F(Latest, SaysWhichRanksCopyNobodyHolds) {
  holdings_.assign(3, {copy_of(0, kNew), copy_of(1, kNew), copy_of(3, kNew)});

  const auto latest = find_latest(holdings_, std::vector<Clique>{ranks({0}), ranks({1}), ranks({2})});

  EXPECT_EQ(latest.name, std::nullopt);
  EXPECT_THAT(latest.passed_over,
              ElementsAre("the local save after step 2: of its 4 ranks, nobody holds a copy of rank 2"));
}

TEST_F(Latest, DoesNotMixSavesOfTheSameStep) {
  const CopyName again{StepCount{2}, 23};
  for (auto holder : {0, 2}) lose(holder, kNew, 2);
  holdings_[0].push_back(copy_of(2, again));

  const auto latest = find_latest(holdings_, cliques_);

  EXPECT_EQ(latest.name, kOld);
  EXPECT_EQ(latest.passed_over.size(), 2u);
}

TEST(NoCopies, LeaveNothingToRestore) {
  const auto cliques = make_cliques(WorldSize{2}, 1, 2).value();

  EXPECT_EQ(find_latest(Holdings(2), cliques).name, std::nullopt);
  EXPECT_EQ(find_latest({}, cliques).name, std::nullopt);
}

TEST(Retrieval, MovesNothingWhenEveryMemberHoldsAll) {
  Holdings holdings(2);
  replicate(holdings, {ranks({0, 1})}, kNew);

  EXPECT_THAT(plan_retrieval(kNew, holdings, ranks({0, 1})).value(), IsEmpty());
}

TEST(Retrieval, BringsAllCopiesBackToAMember) {
  Holdings holdings(2);
  replicate(holdings, {ranks({0, 1})}, kNew);
  holdings[0].clear();

  EXPECT_THAT(plan_retrieval(kNew, holdings, ranks({0, 1})).value(),
              ElementsAre(CopyTransfer{Rank{0}, Rank{1}, 100, ranks({0})},
                          CopyTransfer{Rank{1}, Rank{1}, 100, ranks({0})}));
}

TEST(Retrieval, SpreadsCopiesOfTheLostOverTheHolders) {
  Holdings holdings(4);
  replicate(holdings, {ranks({0, 1, 2, 3})}, kNew);
  holdings[0].clear();
  holdings[1].clear();

  EXPECT_THAT(plan_retrieval(kNew, holdings, ranks({0, 1, 2, 3})).value(),
              ElementsAre(CopyTransfer{Rank{0}, Rank{2}, 100, ranks({0, 1})},
                          CopyTransfer{Rank{1}, Rank{3}, 100, ranks({0, 1})},
                          CopyTransfer{Rank{2}, Rank{2}, 100, ranks({0, 1})},
                          CopyTransfer{Rank{3}, Rank{3}, 100, ranks({0, 1})}));
}

TEST(Retrieval, NamesTheRankAndTheStepThatNobodyHolds) {
  Holdings holdings(4);
  replicate(holdings, {ranks({0, 2})}, kOld);
  holdings[2] = {{kNew, Rank{2}, 100}};

  const auto plan = plan_retrieval(kNew, holdings, ranks({0, 2}));

  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Errc::not_found);
  EXPECT_EQ(plan.error().message,
            "no rank of the clique [0, 2] holds rank 0's copy of the save after step 2");
}

// Covers local-6.
TEST(Replication, SendsEveryMembersCopyToAllOthers) {
  const std::vector<std::uint64_t> bytes{10, 20, 30};

  EXPECT_THAT(plan_replication(ranks({2, 6, 7}), bytes),
              ElementsAre(CopyTransfer{Rank{2}, Rank{2}, 10, ranks({6, 7})},
                          CopyTransfer{Rank{6}, Rank{6}, 20, ranks({2, 7})},
                          CopyTransfer{Rank{7}, Rank{7}, 30, ranks({2, 6})}));
  EXPECT_THAT(plan_replication(ranks({5}), std::vector<std::uint64_t>{10}), IsEmpty());
}

// Covers local-8.
RC_GTEST_PROP(Retrieval, EndsWithEveryCopyAtEveryMember, ()) {
  const auto size = *rc::gen::inRange<std::int32_t>(1, 7);
  Clique clique;
  for (std::int32_t rank = 0; rank < size; ++rank) clique.push_back({2 * rank + 1});
  Holdings holdings(static_cast<std::size_t>(2 * size + 1));
  std::set<std::pair<Rank, Rank>> held;  // holder, owner
  for (auto owner : clique) {
    std::set<Rank> holders{*rc::gen::elementOf(clique)};
    for (auto member : clique) {
      if (*rc::gen::arbitrary<bool>()) holders.insert(member);
    }
    for (auto holder : holders) {
      holdings[static_cast<std::size_t>(holder.value)].push_back({kNew, owner, 5});
      held.emplace(holder, owner);
    }
  }

  const auto plan = plan_retrieval(kNew, holdings, clique);

  RC_ASSERT(plan.has_value());
  for (const auto& transfer : *plan) {
    RC_ASSERT(held.contains({transfer.from, transfer.owner}));
    for (auto to : transfer.to) RC_ASSERT(held.emplace(to, transfer.owner).second);
  }
  RC_ASSERT(held.size() == clique.size() * clique.size());
}

}  // namespace
}  // namespace troupe::core
