#include "core/experts/row_move.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace troupe::core {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kAnyRows = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kTwoChoices = 2;

/// The ranks of a group, whose tokens are numbers of their own.
struct MovingRank {
  Dispatch dispatch;
  ExpertExchange exchange;
  OwnRows own;
  std::vector<float> tokens;
};

std::vector<MovingRank> ranks_of(const ExpertOwners& owners,
                                 const std::vector<std::vector<std::int32_t>>& chosen,
                                 std::optional<std::int64_t> capacity, bool is_grouped) {
  std::vector<MovingRank> ranks(owners.ranks);
  std::vector<std::vector<std::int64_t>> counts;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<float> weights(chosen[r].size(), 1);
    ranks[r].dispatch = dispatch<float>(owners.experts, chosen[r], weights, capacity);
    for (std::size_t i = 0; i < chosen[r].size() / kTwoChoices; ++i)
      ranks[r].tokens.push_back(static_cast<float>(1000 * (r + 1) + i));
    auto& own = counts.emplace_back();
    for (std::size_t e = 0; e < owners.experts; ++e) own.push_back(ranks[r].dispatch.count(e));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].exchange = plan_exchange(owners, r, counts, kAnyRows).value();
    if (is_grouped) group_rows(ranks[r].exchange);
    ranks[r].own = own_rows(owners, r, ranks[r].dispatch, ranks[r].exchange);
  }
  return ranks;
}

std::size_t place(const std::optional<std::vector<std::int64_t>>& list, std::size_t i) {
  return list ? static_cast<std::size_t>((*list)[i]) : i;
}

using Memories = std::vector<std::vector<float>>;

/// What an exchange of these moves does, by its definition.
void exchange(const std::vector<RowMove>& moves, const Memories& inputs, Memories& outputs) {
  for (std::size_t to = 0; to < moves.size(); ++to) {
    std::size_t taken = 0;
    for (std::size_t from = 0; from < moves.size(); ++from) {
      RC_ASSERT(moves[from].sent[to] == moves[to].taken[from]);
      std::size_t sent = 0;
      for (std::size_t i = 0; i < to; ++i) sent += static_cast<std::size_t>(moves[from].sent[i]);
      for (std::int64_t i = 0; i < moves[to].taken[from]; ++i, ++sent, ++taken)
        outputs[to].at(place(moves[to].output, taken)) = inputs[from].at(place(moves[from].input, sent));
    }
  }
}

/// Tokens in the order of slots, sent as they lie: the way without lists.
Memories received_in_order(const std::vector<MovingRank>& ranks) {
  Memories received(ranks.size());
  for (std::size_t to = 0; to < ranks.size(); ++to) {
    for (const MovingRank& from : ranks) {
      std::vector<float> slots(static_cast<std::size_t>(from.dispatch.slots()));
      gather_tokens<float>(from.dispatch, kTwoChoices, 1, from.tokens, slots);
      std::int64_t first = 0;
      for (std::size_t i = 0; i < to; ++i) first += from.exchange.sent[i];
      received[to].insert(received[to].end(), slots.begin() + first,
                          slots.begin() + first + from.exchange.sent[to]);
    }
  }
  return received;
}

TEST(RowMoves, NameTokensAndLeaveOwnRowsInTheirSlots) {
  const auto owners = ExpertOwners::create(2, 2).value();
  // Expert 0 is that of rank 0. Its slots come first: of rank 0 tokens 0 and 1, of rank 1 token 1.
  const auto ranks = ranks_of(owners, {{0, 1, 1, 0}, {1, 1, 0, 1}}, {}, false);

  const auto there = tokens_to_products(ranks[0].dispatch, kTwoChoices, ranks[0].exchange);
  EXPECT_EQ(there, (RowMove{{2, 2}, {2, 1}, {{0, 1, 0, 1}}, {}}));

  EXPECT_EQ(ranks[1].own.first_slot, 1);
  EXPECT_EQ(ranks[1].own.first_received, 2);
  EXPECT_EQ(ranks[1].own.count, 3);
  const auto gradients = slots_to_products(ranks[1].own, 1, ranks[1].exchange);
  EXPECT_EQ(gradients, (RowMove{{1, 0}, {2, 0}, {{0}}, {{0, 1}}}));
  const auto back = products_to_slots(ranks[1].own, 1, ranks[1].exchange);
  EXPECT_EQ(back, (RowMove{{2, 0}, {1, 0}, {{0, 1}}, {{0}}}));
}

TEST(RowMoves, OfGroupedProductsMoveOwnRowsToo) {
  const auto owners = ExpertOwners::create(4, 2).value();
  const auto ranks = ranks_of(owners, {{0, 1, 1, 0}, {1, 0, 2, 3}}, {}, true);

  // Rank 0 receives 0 0 1 1 of itself, 0 1 of rank 1: grouped 0 0 0 1 1 1.
  EXPECT_THAT(*ranks[0].exchange.grouped, ElementsAre(0, 1, 3, 4, 2, 5));
  EXPECT_EQ(slots_to_products(ranks[0].own, 0, ranks[0].exchange),
            (RowMove{{4, 0}, {4, 2}, {}, {{0, 1, 3, 4, 2, 5}}}));
}

RC_GTEST_PROP(RowMovesProperty, BringEveryRowThereInOrderAndBack, ()) {
  const auto count = *rc::gen::element<std::size_t>(1, 2, 4);
  const auto owners = ExpertOwners::create(count * *rc::gen::inRange<std::size_t>(1, 4), count).value();
  const auto capacity = *rc::gen::element<std::int64_t>(1, 2, 100);
  const bool is_grouped = *rc::gen::arbitrary<bool>();
  std::vector<std::vector<std::int32_t>> chosen(count);
  for (auto& mine : chosen) {
    const auto tokens = *rc::gen::inRange<std::size_t>(0, 7);
    for (std::size_t i = 0; i < tokens * kTwoChoices; ++i)
      mine.push_back(*rc::gen::inRange<std::int32_t>(0, static_cast<std::int32_t>(owners.experts)));
  }
  const auto ranks = ranks_of(owners, chosen, capacity, is_grouped);
  const Memories expected = received_in_order(ranks);

  // The tokens' rows, where products read them.
  Memories tokens, products(count), slots(count), again(count);
  std::vector<RowMove> there, gradients, back;
  for (std::size_t r = 0; r < count; ++r) {
    tokens.push_back(ranks[r].tokens);
    products[r].resize(expected[r].size());
    there.push_back(tokens_to_products(ranks[r].dispatch, kTwoChoices, ranks[r].exchange));
    gradients.push_back(slots_to_products(ranks[r].own, r, ranks[r].exchange));
    back.push_back(products_to_slots(ranks[r].own, r, ranks[r].exchange));
    slots[r].resize(static_cast<std::size_t>(ranks[r].dispatch.slots()));
    gather_tokens<float>(ranks[r].dispatch, kTwoChoices, 1, ranks[r].tokens, slots[r]);
    again[r].resize(slots[r].size());
  }
  exchange(there, tokens, products);
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t i = 0; i < expected[r].size(); ++i)
      RC_ASSERT(products[r][place(ranks[r].exchange.grouped, i)] == expected[r][i]);
  }

  // Rows of slots the same way; own ones are where products find them as it is.
  Memories moved(count);
  for (std::size_t r = 0; r < count; ++r) moved[r].resize(expected[r].size());
  exchange(gradients, slots, moved);
  for (std::size_t r = 0; r < count; ++r) {
    const OwnRows& own = ranks[r].own;
    for (std::int64_t i = 0; !is_grouped && i < own.count; ++i) {
      const auto slot = static_cast<std::size_t>(own.first_slot + i);
      moved[r][static_cast<std::size_t>(own.first_received + i)] = slots[r][slot];
      again[r][slot] = slots[r][slot];
    }
  }
  RC_ASSERT(moved == products);
  exchange(back, moved, again);
  RC_ASSERT(again == slots);
}

}  // namespace
}  // namespace troupe::core
