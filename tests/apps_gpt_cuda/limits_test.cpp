#include <gtest/gtest.h>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "tests/apps_gpt_cuda/on_gpu.hpp"
#include "tests/cuda_emulation/control.hpp"

// What only the emulated machine tells, or has little enough of.

namespace troupe::apps::gpt {
namespace {

TEST(CudaModel, WaitsForLossesOnlyWhenTheyAreTaken) {
  Case smallest = kCases[0];
  smallest.shape = {1, 1};
  OnGpu gpu(smallest);
  const auto tokens = some_tokens(gpu.model().shape(), 1);
  const auto copies = cuda_emulation::pageable_copies();
  for (int i = 0; i < 70; ++i) ASSERT_TRUE(gpu.model().forward_loss(gpu.parameters(), tokens, tokens, {}));

  const auto losses = gpu.model().take_losses().value();

  EXPECT_EQ(losses, std::vector<double>(70, losses[0]));
  EXPECT_EQ(cuda_emulation::pageable_copies(), copies);
  EXPECT_TRUE(gpu.model().take_losses().value().empty());
}

TEST(CudaModel, RefusesWhatItCanNotCompute) {
  TestGpu gpu;
  ModelConfig wide = preset("tiny").value();
  wide.heads = 1;
  wide.width = 256;

  const auto model = create_cuda_model(wide, {1, 4}, {}, gpu.device(), gpu.stream());

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, core::Errc::invalid_argument);
  EXPECT_NE(model.error().message.find("at most 128"), std::string::npos) << model.error().message;
}

TEST(CudaModel, RefusesByNameThePartsOfAttentionThatItDoesNotHave) {
  TestGpu gpu;
  const auto message = [&](void (*change)(ModelConfig&)) {
    ModelConfig model = preset("tiny").value();
    change(model);
    const auto made = create_cuda_model(model, {1, 4}, {}, gpu.device(), gpu.stream());
    return made ? "made" : made.error().message;
  };

  EXPECT_EQ(message([](ModelConfig& c) { c.key_value_heads = 2; }), "made");
  for (const auto& [change, part] : {
           std::pair<void (*)(ModelConfig&), std::string>{[](ModelConfig& c) { c.key_value_heads = 1; },
                                                          "heads that share keys and values"},
           {[](ModelConfig& c) { c.head_dimension = 16; }, "heads that are not width / heads wide"},
           {[](ModelConfig& c) { c.query_key_value_bias = true; }, "biases of attention"},
           {[](ModelConfig& c) { c.attention_output_bias = true; }, "biases of attention"},
           {[](ModelConfig& c) { c.query_key_norm = true; }, "norms of queries and keys"},
       }) {
    EXPECT_EQ(message(change), "on a GPU there are no " + part + " yet; train this model with --device host");
  }
}

TEST(CudaModel, RefusesTargetsThatAreNotLearned) {
  OnGpu gpu(kCases[0]);
  const auto tokens = some_tokens(gpu.model().shape(), 1);
  auto targets = tokens;
  targets.back() = kNoTarget;

  const auto done = gpu.model().forward_loss(gpu.parameters(), tokens, targets, {});

  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("every token is learned so far"), std::string::npos);
}

TEST(CudaModel, RefusesWidthsWhoseParametersWouldNotBeAligned) {
  TestGpu gpu;
  for (const auto dtype : {DType::f32, DType::bf16}) {
    for (const std::size_t ragged : {36, 38}) {
      ModelConfig model = preset("tiny").value();
      model.feed_forward = ragged;
      const auto made = create_cuda_model(model, {1, 4}, {.dtype = dtype}, gpu.device(), gpu.stream());

      const bool is_aligned = dtype == DType::f32 && ragged == 36;
      ASSERT_EQ(made.has_value(), is_aligned) << ragged;
      if (!made) {
        EXPECT_NE(made.error().message.find("multiples of"), std::string::npos) << made.error().message;
      }
    }
  }
}

TEST(CudaModel, SaysHowMuchMemoryItAskedFor) {
  TestGpu gpu;
  ModelConfig large = preset("demo").value();
  large.layers = 64;

  const auto model = create_cuda_model(large, {512, 64}, {}, gpu.device(), gpu.stream());

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, core::Errc::out_of_memory);
}

}  // namespace
}  // namespace troupe::apps::gpt
