#include "core/layout/buffers.hpp"

#include <gtest/gtest.h>

#include "tests/core/layout/parameters.hpp"

namespace troupe::core {
namespace {

// Covers whole-1, whole-2.
TEST(WholeParameter, OptimizersTakeMatricesThatAreNotExcluded) {
  EXPECT_TRUE(is_whole_parameter({}));
  EXPECT_FALSE(is_whole_parameter({.excluded = true}));
  EXPECT_FALSE(is_whole_parameter({.embedding_or_output = true}));
  EXPECT_FALSE(is_whole_parameter({.dimensions = 1}));
  EXPECT_FALSE(is_whole_parameter({.dimensions = 1, .excluded = true}));
  EXPECT_FALSE(is_whole_parameter({.dimensions = 3}));
}

TEST(ReadyOrder, IsThatOfTheBackwardPassOverAllBuffers) {
  // Parameters 0 2 4 6 lie in the first buffer, 1 3 5 in the second, two in a bucket.
  const std::vector<std::vector<std::size_t>> members{{0, 2, 4, 6}, {1, 3, 5}};
  const LayoutOptions two{.bucket_size = 200};
  const std::vector<BufferLayout> layouts{plain_layout(sizes({100, 100, 100, 100}), two).value(),
                                          plain_layout(sizes({100, 100, 100}), two).value()};

  // First parameters of the buckets: 4 and 0, 3 and 1.
  EXPECT_EQ(ready_order(layouts, members), (std::vector<BucketRef>{{0, 0}, {1, 0}, {1, 1}, {0, 1}}));
}

}  // namespace
}  // namespace troupe::core
