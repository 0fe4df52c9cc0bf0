#include "core/program/exchange.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace troupe::core {
namespace {

ProgramEntry exchange_of(std::int64_t elements, const std::vector<std::int64_t>& roots, std::int64_t chunk) {
  ProgramEntry entry;
  entry.operation = CollectiveKind::all_to_all;
  entry.elements = elements;
  std::vector<std::int64_t> counts;
  for (const auto held : roots) counts.push_back(held * elements);
  entry.counts = Counts::table(counts);
  entry.chunk = chunk;
  return entry;
}

TEST(Exchange, InOnePieceSendsEachReceiverItsRootParts) {
  const auto entry = exchange_of(10, {2, 1, 0}, 0);

  EXPECT_EQ(chunks_of(entry), 1);
  const auto first = exchange_chunk(entry, 0, 0);
  EXPECT_EQ(first.own, (ElementRange{0, 4}));
  EXPECT_EQ(chunk_ranges(entry, 0), (std::vector<ElementRange>{{0, 4}, {4, 7}, {7, 10}}));
  EXPECT_EQ(first.input_counts.each(), (std::vector<std::int64_t>{8, 6, 6}));
  EXPECT_EQ(first.output_counts.each(), (std::vector<std::int64_t>{8, 4, 0}));
  const auto idle = exchange_chunk(entry, 2, 0);
  EXPECT_EQ(idle.own, (ElementRange{7, 10}));
  EXPECT_EQ(idle.input_counts, Counts::even(0, 3)) << "a rank without a lane takes part";
  EXPECT_EQ(idle.output_counts.each(), (std::vector<std::int64_t>{6, 3, 0}));
}

TEST(Exchange, ShortPartsEndBeforeLongOnes) {
  const auto entry = exchange_of(10, {1, 1, 1}, 3);

  EXPECT_EQ(chunks_of(entry), 2);
  EXPECT_EQ(chunk_ranges(entry, 0), (std::vector<ElementRange>{{0, 3}, {4, 7}, {7, 10}}));
  EXPECT_EQ(chunk_ranges(entry, 1), (std::vector<ElementRange>{{3, 4}, {7, 7}, {10, 10}}));
  EXPECT_EQ(exchange_chunk(entry, 0, 0).input_counts, Counts::even(3, 3));
  EXPECT_EQ(exchange_chunk(entry, 0, 1).input_counts.each(), (std::vector<std::int64_t>{1, 0, 0}));
}

/// A gather of sums that were cut as an exchange has cut them.
TEST(Exchange, ChunksOfAGatherAreEqualStretchesPerMember) {
  ProgramEntry entry;
  entry.operation = CollectiveKind::all_gather;
  entry.elements = 10;
  entry.counts = Counts::table({4, 3, 3});
  entry.chunk = 2;
  using Ranges = std::vector<ElementRange>;

  EXPECT_EQ(chunks_of(entry), 2);
  EXPECT_EQ(chunk_ranges(entry, 0), (Ranges{{0, 2}, {4, 6}, {7, 9}}));
  EXPECT_EQ(chunk_ranges(entry, 1), (Ranges{{2, 4}, {6, 7}, {9, 10}}));
}

RC_GTEST_PROP(Exchange, EveryElementOfEveryRootArrivesOnce, ()) {
  const int members = *rc::gen::inRange(1, 6);
  const auto roots = *rc::gen::container<std::vector<std::int64_t>>(static_cast<std::size_t>(members),
                                                                    rc::gen::inRange(0, 4));
  const auto entry = exchange_of(*rc::gen::inRange(0, 60), roots, *rc::gen::inRange(0, 9));
  std::vector<int> sent(static_cast<std::size_t>(entry.elements));
  std::int64_t moved = 0;

  for (std::int64_t k = 0; k < chunks_of(entry); ++k) {
    std::vector<ExchangeChunk> of;
    for (int m = 0; m < members; ++m) of.push_back(exchange_chunk(entry, m, k));
    for (const auto& range : chunk_ranges(entry, k)) {
      RC_ASSERT(entry.chunk == 0 || range.size() <= entry.chunk);
      for (auto e = range.start; e < range.end; ++e) ++sent.at(static_cast<std::size_t>(e));
    }
    for (std::size_t a = 0; a < of.size(); ++a) {
      RC_ASSERT(of[a].own == chunk_ranges(entry, k)[a]);
      for (std::size_t b = 0; b < of.size(); ++b)
        RC_ASSERT(of[a].input_counts.each()[b] == of[b].output_counts.each()[a]);
      moved += of[a].input_counts.total();
    }
  }

  RC_ASSERT(std::count(sent.begin(), sent.end(), 1) == entry.elements);
  RC_ASSERT(moved == entry.counts.total());
}

}  // namespace
}  // namespace troupe::core
