#include "actors/roles/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace troupe::actors {
namespace {

using core::Rank;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Exchange, HasNoRoundsWithoutTransfers) {
  EXPECT_EQ((Exchange{{{5}}, {}, 4}).rounds(), 0u);
}

TEST(Exchange, OfSaveGivesMembersTheirPartOfEveryRound) {
  const Exchange exchange{
      {{2}, {6}, {7}}, {{{2}, {2}, 10, {{6}, {7}}}, {{6}, {6}, 3, {{2}, {7}}}, {{7}, {7}, 4, {{2}, {6}}}}, 4};

  EXPECT_EQ(exchange.rounds(), 3u);
  EXPECT_THAT(exchange.counts(0), ElementsAre(4, 3, 4));
  EXPECT_THAT(exchange.counts(1), ElementsAre(4, 0, 0));
  EXPECT_THAT(exchange.counts(2), ElementsAre(2, 0, 0));
  EXPECT_THAT(exchange.spans(2, 0), ElementsAre(ExchangeSpan{0, 8, 2}));
  EXPECT_THAT(exchange.spans(0, 1), ElementsAre(ExchangeSpan{1, 0, 3}));
  EXPECT_THAT(exchange.spans(1, 1), IsEmpty());
}

TEST(Exchange, SendsSeveralCopiesOfOneMemberInSequence) {
  const Exchange exchange{{{0}, {1}}, {{{0}, {1}, 5, {{0}}}, {{1}, {1}, 6, {{0}}}}, 4};

  EXPECT_EQ(exchange.rounds(), 3u);
  EXPECT_THAT(exchange.counts(2), ElementsAre(0, 3));
  EXPECT_THAT(exchange.spans(1, 1), ElementsAre(ExchangeSpan{0, 4, 1}, ExchangeSpan{1, 0, 3}));
  EXPECT_THAT(exchange.spans(2, 1), ElementsAre(ExchangeSpan{1, 3, 3}));
}

// Covers local-6.
RC_GTEST_PROP(Exchange, BringsEveryByteOfEveryTransferOnceInOrder, ()) {
  const auto members = *rc::gen::inRange<std::int32_t>(1, 6);
  Exchange exchange;
  for (std::int32_t member = 0; member < members; ++member) exchange.clique.push_back({3 * member});
  exchange.chunk_bytes = *rc::gen::inRange<std::uint64_t>(1, 20);
  const auto transfers = *rc::gen::inRange(0, 8);
  for (int i = 0; i < transfers; ++i) {
    const auto from = *rc::gen::elementOf(exchange.clique);
    exchange.transfers.push_back({from, from, *rc::gen::inRange<std::uint64_t>(1, 60), {}});
  }

  std::map<std::uint32_t, std::uint64_t> arrived;
  for (std::uint32_t round = 0; round < exchange.rounds(); ++round) {
    const auto counts = exchange.counts(round);
    std::size_t all = 0;
    for (std::size_t member = 0; member < exchange.clique.size(); ++member) {
      std::uint64_t bytes = 0;
      for (const auto& span : exchange.spans(round, member)) {
        RC_ASSERT(exchange.transfers[span.transfer].from == exchange.clique[member]);
        RC_ASSERT(span.offset == arrived[span.transfer]);
        arrived[span.transfer] += span.bytes;
        bytes += span.bytes;
      }
      RC_ASSERT(counts[member] == bytes);
      RC_ASSERT(bytes <= exchange.chunk_bytes);
      all += counts[member];
    }
    RC_ASSERT(all > 0u);
  }
  for (std::uint32_t i = 0; i < exchange.transfers.size(); ++i)
    RC_ASSERT(arrived[i] == exchange.transfers[i].bytes);
}

}  // namespace
}  // namespace troupe::actors
