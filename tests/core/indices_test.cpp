#include "core/indices.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace troupe::core {
namespace {

TEST(Indices, NameEveryPlaceOfAListOnceInOrder) {
  std::size_t place = 0;
  for (const auto entry : indices<PlanEntryIndex>(3)) EXPECT_EQ(place_of(entry), place++);
  EXPECT_EQ(place, 3u);

  for (const auto bucket : indices<BucketIndex>(0)) ADD_FAILURE() << bucket.value;
}

}  // namespace
}  // namespace troupe::core
