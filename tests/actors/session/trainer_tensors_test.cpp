#include "actors/session/trainer_tensors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace troupe::actors {
namespace {

TEST(TensorKeys, EachRankOfARunRequestsItsSet) {
  const TensorKeys keys{{{"a"}, {"b", "c"}}, {{0, 2}, {1, 1}, {0, 1}}};

  const auto requests = keys.requests();

  EXPECT_EQ(requests.sets, keys.sets);
  ASSERT_EQ(requests.of_ranks.size(), 4u);
  const std::vector<std::size_t> expected = {0, 0, 1, 0};
  for (std::size_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(requests.keys_of_rank(rank, requests.sets), keys.sets[expected[rank]]) << rank;
}

}  // namespace
}  // namespace troupe::actors
