#include "apps/gpt/stage/models.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"
#include "tests/apps_gpt/uncut_model.hpp"

namespace troupe::apps::gpt {
namespace {

using core::DType;
using core::Errc;
using gpu::DeviceKind;
using testing::HasSubstr;

TEST(Models, PresetsHaveTheSizesTheyAreCalledBy) {
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("350m").value())), 350e6, 15e6);
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("760m").value())), 760e6, 15e6);
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("1.5b").value())), 1.5e9, 50e6);
  for (const char* name : {"350m", "760m", "1.5b"}) EXPECT_TRUE(validate(preset(name).value())) << name;
}

TEST(Models, MemoryIsCountedByWhatItIsFor) {
  const auto config = preset("tiny").value();
  const std::size_t count = parameter_count(config);

  const auto narrow = memory_need(config, {2, 8}, {.dtype = DType::bf16}, DeviceKind::host);
  const auto full = memory_need(config, {2, 8}, {}, DeviceKind::host);

  EXPECT_EQ(narrow.parameters, 2 * count);
  EXPECT_EQ(narrow.gradients, 4 * count);
  EXPECT_EQ(narrow.optimizer, 3 * 4 * count);
  EXPECT_EQ(full.parameters, 4 * count);
  EXPECT_EQ(full.optimizer, 8 * count);
  EXPECT_EQ(full.activations, Model::create(config, {2, 8}).value().activation_bytes());
}

TEST(Models, KeepingOnlyInputsTakeOneBlockAndOtherInputs) {
  auto config = preset("tiny").value();
  const auto need = [&](std::size_t layers, Keep keep) {
    config.layers = layers;
    return memory_need(config, {2, 8}, {.keep = keep}, DeviceKind::host).activations;
  };
  const std::size_t input = 2 * 8 * config.width * sizeof(float);

  EXPECT_EQ(need(1, Keep::inputs), need(1, Keep::activations));
  EXPECT_EQ(need(5, Keep::inputs), need(1, Keep::activations) + 4 * input);
  EXPECT_EQ(need(5, Keep::inputs), Model::create(config, {2, 8}, Keep::inputs).value().activation_bytes());
  EXPECT_LT(need(5, Keep::inputs), need(2, Keep::activations));
}

TEST(Models, WhatDoesNotFitIsRefusedWithItsParts) {
  const MemoryNeed need{.parameters = std::size_t{3} << 30,
                        .gradients = std::size_t{6} << 30,
                        .optimizer = std::size_t{18} << 30,
                        .activations = std::size_t{20} << 30};

  EXPECT_TRUE(check_memory(need, need.total()));
  const auto refused = check_memory(need, need.total() - 1);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::out_of_memory);
  EXPECT_THAT(refused.error().message, HasSubstr("takes 47.0 GiB (parameters 3.0, gradients 6.0"));
}

TEST(Models, TheHostComputesInF32Only) {
  const auto config = preset("tiny").value();

  const auto refused = check_model(config, {1, 8}, {.dtype = DType::bf16}, DeviceKind::host);

  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("the host computes in f32, found bf16"));
  EXPECT_FALSE(check_model(config, {1, 8}, {.tf32 = true}, DeviceKind::host));
  EXPECT_TRUE(check_model(config, {1, 8}, {}, DeviceKind::host));
}

TEST(Models, FlopsPerTokenAreSixPerWeightPlusAttention) {
  const ModelConfig config{.layers = 2, .heads = 2, .width = 16, .feed_forward = 32, .context = 16};

  const double weights = 2 * (4 * 16 * 16 + 3 * 16 * 32) + 256 * 16;
  EXPECT_EQ(training_flops_per_token(config, 8), 6 * weights + 6 * 2 * 8 * 16);
}

TEST(Models, TheHostsModelIsTheReference) {
  const auto config = preset("tiny").value();
  const auto model = create_host_model(config, {1, 4}).value();
  auto values = initial_parameters(model->table().specs, 1);
  Tensors<float> gradients(model->table().specs);
  const auto parameters = values.constant();
  const std::vector<std::int32_t> tokens{1, 2, 3, 4}, targets{2, 3, 4, 5};

  ASSERT_TRUE(model->forward_backward(parameters, gradients.pointers(), tokens, targets, {}));
  ASSERT_TRUE(model->forward_loss(parameters, tokens, targets, {}));
  const auto losses = model->take_losses().value();

  ASSERT_EQ(losses.size(), 2U);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_NEAR(losses[0], std::log(256.0), 0.05);
  EXPECT_TRUE(model->take_losses().value().empty());
}

}  // namespace
}  // namespace troupe::apps::gpt
