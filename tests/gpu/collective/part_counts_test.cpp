#include "gpu/collective/part_counts.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace troupe::gpu {
namespace {

using Table = std::vector<std::size_t>;

TEST(PartCounts, OfATableThatIsEvenAreEven) {
  const PartCounts table = Table{4, 4, 4};

  EXPECT_TRUE(table.is_even());
  EXPECT_EQ(table, PartCounts::even(4, 3));
  EXPECT_EQ(table.each(), (Table{4, 4, 4}));
}

TEST(PartCounts, AnswerAlikeInEitherForm) {
  const Table numbers{2, 0, 5, 2};
  const PartCounts uneven = numbers;
  const PartCounts even = PartCounts::even(3, 4);

  EXPECT_FALSE(uneven.is_even());
  EXPECT_EQ(uneven.each(), numbers);
  EXPECT_EQ(uneven[2], 5U);
  EXPECT_EQ(uneven.before(3), 7U);
  EXPECT_EQ(uneven.total(), 9U);
  EXPECT_EQ(uneven.view().most(), 5U);
  EXPECT_EQ(even[2], 3U);
  EXPECT_EQ(even.before(3), 9U);
  EXPECT_EQ(even.total(), 12U);
  EXPECT_EQ(even.view().most(), 3U);
}

TEST(PartCounts, OfATableThatOthersKeepAreItsNumbers) {
  const Table numbers{4, 4};
  const PartCountsView view = numbers;

  EXPECT_FALSE(view.is_even());
  EXPECT_EQ(view.total(), 8U);
  EXPECT_EQ(view.each(), numbers);
}

TEST(PartCounts, WithoutMembersAreNone) {
  EXPECT_TRUE(PartCounts().empty());
  EXPECT_TRUE(PartCounts(Table{}).empty());
  EXPECT_FALSE(PartCounts::even(0, 2).empty());
  EXPECT_EQ(PartCounts(Table{}), PartCounts());
}

}  // namespace
}  // namespace troupe::gpu
