#include "core/experts/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/experts/dispatch.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Counts = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kRoom = std::numeric_limits<std::int64_t>::max();

TEST(ExpertExchange, CountsWhatGoesToTheOwnersOfTheExperts) {
  const auto owners = ExpertOwners::create(4, 2).value();
  // Rank 0 has slots of experts 0, 2 and 3; rank 1 of 0 and 1 alone.
  const Counts counts = {{1, 0, 2, 3}, {4, 5, 0, 0}};

  const auto first = plan_exchange(owners, 0, counts, kRoom).value();
  const auto second = plan_exchange(owners, 1, counts, kRoom).value();

  EXPECT_THAT(first.sent, ElementsAre(1, 5));
  EXPECT_THAT(first.received, ElementsAre(1, 9));
  EXPECT_THAT(first.products[0], ElementsAre(ExpertRows{0, 0, 1}, ExpertRows{1, 1, 4}));
  EXPECT_THAT(first.products[1], ElementsAre(ExpertRows{0, 1, 0}, ExpertRows{1, 5, 5}));
  EXPECT_THAT(second.sent, ElementsAre(9, 0));
  EXPECT_THAT(second.received, ElementsAre(5, 0));
}

TEST(ExpertExchange, GroupedRowsOfAnExpertLieTogetherBySource) {
  const auto owners = ExpertOwners::create(4, 2).value();
  auto exchange = plan_exchange(owners, 1, Counts{{0, 0, 2, 1}, {0, 0, 1, 1}}, kRoom).value();
  EXPECT_FALSE(exchange.grouped.has_value());

  group_rows(exchange);

  EXPECT_THAT(*exchange.grouped, ElementsAre(0, 1, 3, 2, 4));
  EXPECT_THAT(exchange.products[0], ElementsAre(ExpertRows{0, 0, 3}));
  EXPECT_THAT(exchange.products[1], ElementsAre(ExpertRows{0, 3, 2}));
}

TEST(ExpertExchange, WorksWithoutTokensAndWithAllToOneExpert) {
  const auto owners = ExpertOwners::create(4, 4).value();
  const Counts counts = {{0, 0, 0, 0}, {0, 0, 7, 0}, {0, 0, 0, 0}, {0, 0, 9, 0}};

  const auto owner = plan_exchange(owners, 2, counts, kRoom).value();
  const auto idle = plan_exchange(owners, 0, counts, kRoom).value();

  EXPECT_EQ(owner.received_rows(), 16);
  EXPECT_THAT(owner.received, ElementsAre(0, 7, 0, 9));
  EXPECT_THAT(idle.sent, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(idle.received_rows(), 0);
}

TEST(ExpertExchange, RefusesWhatHasNoRoomAndWhatCannotBe) {
  const auto owners = ExpertOwners::create(4, 2).value();

  EXPECT_THAT(plan_exchange(owners, 0, Counts{{1, 2, 0, 0}, {3, 4, 0, 0}}, 9).error().message,
              HasSubstr("would receive 10 rows (3, 7 from each), there is room for 9"));
  EXPECT_THAT(plan_exchange(owners, 0, Counts{{1, 2, 0, 0}}, kRoom).error().message,
              HasSubstr("expected the counts of 2 ranks, found those of 1"));
  EXPECT_THAT(plan_exchange(owners, 0, Counts{{1, 2, 0, 0}, {1}}, kRoom).error().message,
              HasSubstr("expected counts of 4 experts, rank 1 of the group has 1"));
  EXPECT_THAT(plan_exchange(owners, 0, Counts{{1, 2, 0, 0}, {0, 0, -1, 0}}, kRoom).error().message,
              HasSubstr("rank 1 of the group counts -1 slots of expert 2"));
  EXPECT_THAT(ExpertOwners::create(6, 4).error().message,
              HasSubstr("6 experts cannot be owned by 4 ranks alike"));
}

RC_GTEST_PROP(ExpertExchangeProperty, WhatOneRankSendsIsWhatTheOtherReceives, ()) {
  const auto ranks = *rc::gen::element<std::size_t>(1, 2, 3, 4, 8);
  const auto owners = ExpertOwners::create(ranks * *rc::gen::inRange<std::size_t>(1, 5), ranks).value();
  Counts counts(ranks);
  for (auto& mine : counts) {
    const bool idle = *rc::gen::inRange(0, 4) == 0;
    for (std::size_t e = 0; e < owners.experts; ++e)
      mine.push_back(idle ? 0 : *rc::gen::inRange<std::int64_t>(0, 5));
  }
  std::vector<ExpertExchange> exchanges;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    exchanges.push_back(plan_exchange(owners, rank, counts, kRoom).value());

  for (std::size_t a = 0; a < ranks; ++a) {
    const auto sent = std::accumulate(exchanges[a].sent.begin(), exchanges[a].sent.end(), std::int64_t{0});
    RC_ASSERT(sent == std::accumulate(counts[a].begin(), counts[a].end(), std::int64_t{0}));
    for (std::size_t b = 0; b < ranks; ++b) RC_ASSERT(exchanges[a].sent[b] == exchanges[b].received[a]);
    // The products take every received row once, and those of an expert are what its sources have of it.
    for (std::size_t own = 0; own < owners.per_rank(); ++own) {
      for (const auto& part : exchanges[a].products[own])
        RC_ASSERT(part.count == counts[part.source][owners.first(a) + own]);
    }
    auto grouped = exchanges[a];
    group_rows(grouped);
    auto rows = *grouped.grouped;
    std::sort(rows.begin(), rows.end());
    for (std::size_t i = 0; i < rows.size(); ++i) RC_ASSERT(rows[i] == static_cast<std::int64_t>(i));
    RC_ASSERT(static_cast<std::int64_t>(rows.size()) == exchanges[a].received_rows());
  }
}

/// Every token of every rank goes to the ranks of its experts, which mark it, and comes back.
RC_GTEST_PROP(ExpertExchangeProperty, EachChoiceReturnsOnceOrIsCountedAsDropped, ()) {
  const auto ranks = *rc::gen::element<std::size_t>(1, 2, 4);
  const auto owners = ExpertOwners::create(ranks * *rc::gen::inRange<std::size_t>(1, 4), ranks).value();
  const auto choices = *rc::gen::inRange<std::size_t>(1, std::min<std::size_t>(owners.experts, 3) + 1);
  const auto capacity = *rc::gen::element<std::int64_t>(1, 2, 100);
  std::vector<Dispatch> dispatches;
  std::vector<std::vector<std::int32_t>> chosen(ranks);
  Counts counts(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto tokens = *rc::gen::inRange<std::size_t>(0, 7);
    for (std::size_t i = 0; i < tokens; ++i) {
      const auto first = *rc::gen::inRange<std::size_t>(0, owners.experts);
      for (std::size_t k = 0; k < choices; ++k)
        chosen[rank].push_back(static_cast<std::int32_t>((first + k) % owners.experts));
    }
    const std::vector<float> weights(chosen[rank].size(), 1);
    dispatches.push_back(dispatch<float>(owners.experts, chosen[rank], weights, capacity));
    for (std::size_t e = 0; e < owners.experts; ++e) counts[rank].push_back(dispatches[rank].count(e));
  }
  // Rows are (rank, slot), in the order in which they are sent; their owner adds the expert.
  using Row = std::tuple<std::size_t, std::int64_t, std::size_t>;
  std::vector<std::vector<Row>> returned(ranks, std::vector<Row>());
  for (std::size_t rank = 0; rank < ranks; ++rank)
    returned[rank].resize(static_cast<std::size_t>(dispatches[rank].slots()));
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    const auto exchange = plan_exchange(owners, owner, counts, kRoom).value();
    std::vector<Row> received;
    for (std::size_t source = 0; source < ranks; ++source) {
      const auto first = dispatches[source].first_slot[owners.first(owner)];
      for (std::int64_t i = 0; i < exchange.received[source]; ++i)
        received.emplace_back(source, first + i, 0);
    }
    for (std::size_t own = 0; own < owners.per_rank(); ++own) {
      for (const auto& part : exchange.products[own]) {
        for (std::int64_t i = 0; i < part.count; ++i)
          std::get<2>(received[static_cast<std::size_t>(part.first + i)]) += owners.first(owner) + own + 1;
      }
    }
    for (const auto& row : received)
      returned[std::get<0>(row)][static_cast<std::size_t>(std::get<1>(row))] = row;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::int64_t back = 0;
    for (std::size_t choice = 0; choice < chosen[rank].size(); ++choice) {
      const auto slot = dispatches[rank].slot_of_choice[choice];
      if (slot == Dispatch::kDropped) continue;
      back += 1;
      const auto expert = static_cast<std::size_t>(chosen[rank][choice]);
      RC_ASSERT(returned[rank][static_cast<std::size_t>(slot)] == Row(rank, slot, expert + 1));
    }
    const auto& dropped = dispatches[rank].dropped;
    const auto lost = std::accumulate(dropped.begin(), dropped.end(), std::int64_t{0});
    RC_ASSERT(back + lost == static_cast<std::int64_t>(chosen[rank].size()));
  }
}

}  // namespace
}  // namespace troupe::core
