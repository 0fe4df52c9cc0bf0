#include "apps/gpt/layers/embedding.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace troupe::apps::gpt {
namespace {

TEST(Embedding, CopiesTheRowOfEachToken) {
  const std::vector<std::int32_t> tokens = {2, 0, 2};
  const std::vector<float> table = {1, 2, 3, 4, 5, 6};  // (3, 2)
  std::vector<float> x(6);

  embedding_forward<float>(tokens, 2, table.data(), x.data());

  EXPECT_EQ(x, (std::vector<float>{5, 6, 1, 2, 5, 6}));
}

TEST(Embedding, BackwardAddsTheGradientsOfAllPlacesOfAToken) {
  const std::vector<std::int32_t> tokens = {2, 0, 2};
  const std::vector<float> d_x = {1, 2, 3, 4, 5, 6};
  std::vector<float> d_table = {10, 10, 10, 10, 10, 10};

  embedding_backward<float>(tokens, 2, d_x.data(), d_table.data());

  EXPECT_EQ(d_table, (std::vector<float>{13, 14, 10, 10, 16, 18}));
}

}  // namespace
}  // namespace troupe::apps::gpt
