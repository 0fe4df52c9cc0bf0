#include <gtest/gtest.h>

#include "apps/gpt/stage/host_stage.hpp"
#include "tests/apps_gpt_cuda/on_gpu.hpp"

namespace troupe::apps::gpt {
namespace {

class CudaExpertsTest : public testing::TestWithParam<Case> {};

Case mixture_of(const char* name, DType dtype, BatchShape shape, Mixture mixture) {
  return {name, dtype, Norm::rms, Activation::swiglu, true, shape, kLlama, mixture};
}

// Also experts that nobody chooses, more choices than experts have room for, and ties, of which the lower
// numbers and the first tokens win.
const Case kMixtures[] = {
    mixture_of("f32_mixtral", DType::f32, {2, 7}, {.experts = 4}),
    mixture_of("f32_qwen", DType::f32, {1, 67},
               {.experts = 6, .choices = 3, .shared = 16, .has_shared_gate = true, .score_first = true}),
    mixture_of("f32_dropping", DType::f32, {2, 7}, {.experts = 4, .shared = 8, .capacity = 0.7}),
    mixture_of("f32_one_choice_of_many", DType::f32, {1, 5},
               {.experts = 12, .choices = 1, .score_first = true}),
    mixture_of("f32_first_layer_dense", DType::f32, {2, 7}, {.experts = 4, .is_first_dense = true}),
    mixture_of("f32_ties", DType::f32, {2, 7}, {.experts = 4, .capacity = 1.2, .has_ties = true}),
    mixture_of("f32_biases", DType::f32, {2, 7}, {.experts = 6, .has_biases = true}),
    mixture_of("bf16_mixtral", DType::bf16, {2, 7}, {.experts = 4}),
};

INSTANTIATE_TEST_SUITE_P(All, CudaExpertsTest, testing::ValuesIn(kMixtures),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CudaExpertsTest, HaveTheHostsChoicesLossAndGradients) {
  const DType dtype = GetParam().dtype;
  const double tolerance = dtype == DType::f32 ? 1e-5 : loss_tolerance(dtype);
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);

  for (const std::uint64_t seed : {1, 2}) {
    const double expected = host.pass(seed);
    EXPECT_NEAR(gpu.pass(seed), expected, tolerance * expected);
    ExpertTally tally(host.model.config().layers, host.model.config().experts.count);
    add_pass(tally, host.model.routes());
    EXPECT_EQ(gpu.model().take_expert_tally(), tally);
  }

  const auto gradients = gpu.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    expect_gradient(dtype, gradients[i], host.gradients.tensors[i], host.model.table().specs[i].name);
  }
}

TEST_P(CudaExpertsTest, HaveTheHostsSumsOfLossesAndTheirGradients) {
  const DType dtype = GetParam().dtype;
  const double tolerance = dtype == DType::f32 ? 1e-5 : loss_tolerance(dtype);
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);

  const double expected = host.pass(1, hooks_of_sums());

  EXPECT_NEAR(gpu.pass(1, hooks_of_sums()), expected, tolerance * expected);
  const auto gradients = gpu.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    expect_gradient(dtype, gradients[i], host.gradients.tensors[i], host.model.table().specs[i].name);
  }
}

TEST_P(CudaExpertsTest, GiveTheSameBitsWhateverCameBefore) {
  OnGpu one(GetParam()), other(GetParam());
  const double first = one.pass(1);
  other.pass(3);
  other.clear_gradients();
  const double again = other.pass(1);

  EXPECT_EQ(again, first);
  EXPECT_EQ(other.gradients(), one.gradients());
}

TEST_P(CudaExpertsTest, ScaleTheGradientsOfRoutersLossesAsAllOthers) {
  OnGpu plain(GetParam()), scaled(GetParam());
  StepHooks hooks;
  hooks.loss_scale = 1024;

  plain.pass(1);
  scaled.pass(1, hooks);

  auto expected = plain.gradients();
  for (auto& tensor : expected) {
    for (float& value : tensor) value *= 1024;
  }
  EXPECT_EQ(scaled.gradients(), expected);
}

TEST_P(CudaExpertsTest, EvaluateWithoutRouterLossesTellingHooksLikeTheHost) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);
  HookCalls found, expected;
  const auto tokens = some_tokens(host.model.shape(), 1),
             targets = some_targets(host.model.shape(), 1, false);

  const double trained = gpu.pass(1, hooks_that_note(found));
  ASSERT_TRUE(host.model.forward_backward(host.values.constant(), host.gradients.pointers(), tokens, targets,
                                          hooks_that_note(expected)));
  const double evaluated = host.model.forward_loss(host.values.constant(), tokens, targets).value();

  if (GetParam().dtype == DType::f32) {
    EXPECT_EQ(found, expected);
    EXPECT_NEAR(gpu.loss(1), evaluated, 1e-5 * evaluated);
  }
  EXPECT_GT(trained, gpu.loss(1));
}

TEST(CudaExperts, RefuseToBeComputedAgain) {
  TestGpu gpu;
  const auto recomputed = create_cuda_model(config_of(kMixtures[0]), {1, 4},
                                            {DType::f32, false, Keep::inputs}, gpu.device(), gpu.stream());

  ASSERT_FALSE(recomputed);
  EXPECT_EQ(recomputed.error().code, core::Errc::unavailable);
}

/// R rows beyond those of a rank that has all experts: received ones of each layer with their gate, up and
/// hidden, and once for all layers what is returned, and the gradients of both.
TEST(CudaExperts, TakeRoomForAllRowsThatMayCome) {
  ModelConfig model = config_of(kMixtures[0]);
  const BatchShape shape{4, 16};
  const auto bytes = [&](std::size_t ranks, std::optional<double> capacity) {
    model.experts.ranks = ranks;
    model.experts.capacity_factor = capacity;
    return cuda_stage_bytes(model, uncut(model), {.batch = shape}, DType::f32);
  };
  const std::size_t C = model.width, F = model.experts.feed_forward, layers = model.layers;
  const std::size_t own = 4 * 16 * 2, expected = 4 * own;
  const std::size_t kept = layers * (expected * C + 3 * (expected - own) * F);
  const std::size_t shared = expected * C + 3 * (expected - own) * F;

  EXPECT_EQ(bytes(4, {}) - bytes(1, {}), (kept + shared) * sizeof(float));
  EXPECT_LT(bytes(4, 1.0), bytes(4, {})) << "a capacity bounds what comes";
}

}  // namespace
}  // namespace troupe::apps::gpt
