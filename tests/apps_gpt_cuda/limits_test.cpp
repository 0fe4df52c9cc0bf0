#include <gtest/gtest.h>

#include <set>
#include <thread>

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

TEST(CudaModel, UsesNoGpuButItsOwn) {
  cuda_emulation::reset();
  cuda_emulation::set_device_count(2);
  // A thread that has not used CUDA has device 0 as its current one.
  std::thread([] {
    const auto device = gpu::open_cuda_device({.device = 1}).value();
    const auto stream = device->create_stream({.name = "compute"}).value();
    EXPECT_TRUE(
        create_cuda_model(preset("tiny").value(), {1, 4}, {.dtype = DType::bf16}, *device, stream.get()));
  }).join();

  EXPECT_EQ(cuda_emulation::contexts(), std::set<int>{1});
}

TEST(CudaModel, RefusesWhatItCannotCompute) {
  TestGpu gpu;
  ModelConfig wide = preset("tiny").value();
  wide.heads = 1;
  wide.width = 256;

  const auto model = create_cuda_model(wide, {1, 4}, {.dtype = DType::bf16}, gpu.device(), gpu.stream());

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, core::Errc::invalid_argument);
  EXPECT_NE(model.error().message.find("at most 128"), std::string::npos) << model.error().message;
}

TEST(CudaModel, RefusesHeadsWhoseParametersWouldNotBeAligned) {
  TestGpu gpu;
  const auto is_made = [&](void (*change)(ModelConfig&)) {
    ModelConfig model = preset("tiny").value();
    change(model);
    const auto made = create_cuda_model(model, {1, 4}, {.dtype = DType::bf16}, gpu.device(), gpu.stream());
    if (!made) {
      EXPECT_NE(made.error().message.find("must be multiples of 8 in bf16"), std::string::npos)
          << made.error().message;
    }
    return made.has_value();
  };

  EXPECT_TRUE(is_made([](ModelConfig& c) { c.head_dimension = 12, c.heads = 6, c.key_value_heads = 2; }));
  EXPECT_FALSE(is_made([](ModelConfig& c) { c.head_dimension = 12, c.heads = 6, c.key_value_heads = 1; }));
  EXPECT_FALSE(is_made([](ModelConfig& c) { c.head_dimension = 12, c.query_key_norm = true; }));
}

TEST(CudaModel, LearnsNothingFromTargetsOfWhichNoneIsLearned) {
  OnGpu gpu(kCases[0]);
  const auto tokens = some_tokens(gpu.model().shape(), 1);
  const std::vector<std::int32_t> targets(tokens.size(), kNoTarget);

  ASSERT_TRUE(gpu.model().forward_backward(gpu.parameters(), gpu.gradient_pointers(), tokens, targets, {}));

  EXPECT_EQ(gpu.model().take_losses().value(), std::vector<double>{0.0});
  for (const auto& gradient : gpu.gradients()) EXPECT_EQ(gradient, std::vector<float>(gradient.size(), 0.0F));
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

  const auto model = create_cuda_model(large, {512, 64}, {.dtype = DType::bf16}, gpu.device(), gpu.stream());

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, core::Errc::out_of_memory);
}

}  // namespace
}  // namespace troupe::apps::gpt
