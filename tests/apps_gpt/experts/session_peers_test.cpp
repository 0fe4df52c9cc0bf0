#include "apps/gpt/rank/session_peers.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::apps::gpt {
namespace {

using Declared = core::CollectiveKind;
using Pass = core::Pass;

/// The model of four ranks with two experts of each layer but the second.
ModelConfig spread_model() {
  ModelConfig config;
  config.vocabulary = 32;
  config.context = 16;
  config.layers = 3;
  config.heads = 2;
  config.width = 16;
  config.feed_forward = 24;
  config.tied_embeddings = false;
  config.experts = {.count = 8, .choices = 2, .feed_forward = 24, .dense_layers = {1}, .ranks = 4};
  return config;
}

std::vector<core::DeclaredOperation> of_layer(const std::vector<core::DeclaredOperation>& all,
                                              std::uint32_t unit) {
  std::vector<core::DeclaredOperation> own;
  for (const auto& one : all) {
    if (one.unit == core::UnitIndex{unit}) own.push_back(one);
  }
  return own;
}

void expect_operation(const core::DeclaredOperation& found, Declared kind, core::DType dtype,
                      std::int64_t count, bool bounded, Pass pass) {
  EXPECT_EQ(found.group, "ep");
  EXPECT_EQ(found.kind, kind);
  EXPECT_EQ(found.dtype, dtype);
  EXPECT_EQ(found.counts, std::vector<std::int64_t>(4, count));
  EXPECT_EQ(found.bounded, bounded);
  EXPECT_EQ(found.pass, pass);
}

TEST(ExpertOperations, AreCountsTwoExchangesForwardAndTwoBackward) {
  const auto config = spread_model();

  const auto all = expert_operations(config, parameter_table(config), 10, 4);

  // The embedding is unit 0, the second layer has no experts.
  ASSERT_EQ(all.size(), 10U);
  for (const std::uint32_t unit : {1U, 3U}) {
    const auto own = of_layer(all, unit);
    ASSERT_EQ(own.size(), 5U);
    expect_operation(own[0], Declared::all_gather, core::DType::i64, 8, false, Pass::forward);
    // 10 tokens with 2 choices of 16 f32; and those of 4 ranks, which may all choose the experts of one.
    expect_operation(own[1], Declared::all_to_all, core::DType::u8, 10 * 2 * 64, true, Pass::forward);
    expect_operation(own[2], Declared::all_to_all, core::DType::u8, 4 * 10 * 2 * 64, true, Pass::forward);
    expect_operation(own[3], Declared::all_to_all, core::DType::u8, 10 * 2 * 64, true, Pass::backward);
    expect_operation(own[4], Declared::all_to_all, core::DType::u8, 4 * 10 * 2 * 64, true, Pass::backward);
  }
}

TEST(ExpertOperations, BringNoMoreThanACapacityLetsThrough) {
  auto config = spread_model();
  config.experts.capacity_factor = 1;

  const auto own = of_layer(expert_operations(config, parameter_table(config), 10, 2), 1);

  // Each of 8 experts takes 3 of 20 choices of a rank, so 2 experts take 6 of each of 4 ranks; rows of bf16.
  expect_operation(own[2], Declared::all_to_all, core::DType::u8, 4 * 2 * 3 * 32, true, Pass::forward);
}

TEST(ExpertOperations, AreNoneWhereARankHasAllExperts) {
  auto config = spread_model();
  config.experts.ranks = 1;

  EXPECT_TRUE(expert_operations(config, parameter_table(config), 10, 4).empty());
}

}  // namespace
}  // namespace troupe::apps::gpt
