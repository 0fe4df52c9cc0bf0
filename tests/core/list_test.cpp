#include "core/list.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "core/ids.hpp"

namespace troupe::core {
namespace {

enum class Colour { red, green };

// The calls below would not compile if an index of another kind were taken.
template <class List, class Index>
concept TakesIndex = requires(List list, Index index) {
  list[index];
};
static_assert(TakesIndex<List<BucketIndex, int>, BucketIndex>);
static_assert(!TakesIndex<List<BucketIndex, int>, ParameterIndex>);
static_assert(!TakesIndex<List<BucketIndex, int>, std::size_t>);
static_assert(!TakesIndex<List<Colour, int>, int>);

TEST(List, FindsItemsByWhatTheirPositionsStandFor) {
  List<BucketIndex, int> buckets{5, 6, 7};
  List<Colour, bool> colours(2, false);

  buckets[{1}] = 60;
  colours[Colour::green] = true;

  EXPECT_EQ(buckets.items(), (std::vector<int>{5, 60, 7}));
  EXPECT_FALSE(colours[Colour::red]);
  EXPECT_TRUE(colours[Colour::green]);
}

TEST(List, CountsItsIndicesFromZero) {
  const List<int, char> letters{'a', 'b', 'c'};
  std::vector<int> seen;

  for (const int index : letters.indices()) seen.push_back(index);

  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(letters.end_index(), 3);
  EXPECT_EQ((List<BucketIndex, char>{}.end_index()), BucketIndex{0});
}

}  // namespace
}  // namespace troupe::core
