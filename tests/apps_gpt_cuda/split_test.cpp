#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpt/cuda/cuda_stage.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "tests/apps_gpt_cuda/members.hpp"

// Backwards in two halves. The stage has all layers here; of stages beside each other see tests/gpt_session.

namespace troupe::apps::gpt {
namespace {

constexpr int kSlots = 2;

Case untied(const char* name, DType dtype, Norm norm, Activation activation, BatchShape shape,
            Decoder decoder = {}, Mixture mixture = {}) {
  return {name, dtype, norm, activation, false, shape, decoder, mixture};
}

constexpr Mixture kShared{.experts = 4, .shared = 8};
constexpr Mixture kSharedByGate{.experts = 4, .shared = 8, .has_shared_gate = true, .is_first_dense = true};

const Case kSplitCases[] = {
    untied("f32_rms_swiglu", DType::f32, Norm::rms, Activation::swiglu, {2, 6}),
    untied("f32_everything", DType::f32, Norm::layer, Activation::gelu, {3, 5}, kEverything),
    untied("bf16_longer_than_a_tile", DType::bf16, Norm::layer, Activation::swiglu, {1, 67}, kQwen3),
    untied("bf16_everything", DType::bf16, Norm::rms, Activation::swiglu, {3, 5}, kEverything),
    untied("f32_experts", DType::f32, Norm::rms, Activation::swiglu, {2, 7}, kLlama, {.experts = 4}),
    untied("bf16_shared_expert", DType::bf16, Norm::rms, Activation::swiglu, {2, 7}, kLlama, kShared),
    untied("f32_shared_expert_by_gate", DType::f32, Norm::rms, Activation::swiglu, {2, 7}, kLlama,
           kSharedByGate),
};

StageShape shape_of(const Case& of, bool is_split, TensorShare share = {}) {
  return {.batch = of.shape, .slots = {kSlots, kSlots}, .is_split = is_split, .share = share};
}

/// A stage and its parameters.
class StageOnGpu {
 public:
  StageOnGpu(const Case& of, bool is_split, TestGpu& gpu, TensorShare share = {},
             DeviceTensorGroup* group = nullptr)
      : of_(of), parts_(of, share, gpu) {
    const auto config = config_of(of);
    stage_ = create_cuda_stage(config, uncut(config), shape_of(of, is_split, share), {.dtype = of.dtype},
                               gpu.device(), gpu.stream(), {group})
                 .value();
  }

  void forward(int microbatch, const StepHooks& hooks = {}) {
    const auto tokens = some_tokens(of_.shape, static_cast<std::uint64_t>(microbatch));
    const auto targets =
        some_targets(of_.shape, static_cast<std::uint64_t>(microbatch), of_.decoder.is_masked);
    const StagePass pass{parts_.parameters(), {}, hooks};
    const int slot = microbatch % kSlots;
    EXPECT_TRUE(stage_->forward(0, {slot, slot}, pass, {tokens, targets}));
    EXPECT_TRUE(stage_->loss(0, slot, pass, {tokens, targets}));
    EXPECT_TRUE(stage_->take_losses(1));
  }
  void backward(int microbatch, const StepHooks& hooks = {}) {
    EXPECT_TRUE(
        stage_->backward(0, microbatch % kSlots, {parts_.parameters(), parts_.gradients(), hooks}, {}));
  }
  void backward_weight(int microbatch, const StepHooks& hooks = {}) {
    EXPECT_TRUE(
        stage_->backward_weight(microbatch % kSlots, {parts_.parameters(), parts_.gradients(), hooks}));
  }

  std::vector<std::vector<float>> gradients() {
    std::vector<std::vector<float>> all;
    for (std::size_t i = 0; i < parts_.table().size(); ++i) all.push_back(parts_.gradient(i));
    return all;
  }
  const std::string& name(std::size_t parameter) const { return parts_.table().part().specs[parameter].name; }

 private:
  Case of_;
  PartsOnGpu parts_;
  std::unique_ptr<TrainableStage> stage_;
};

void play_whole(StageOnGpu& stage) {
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    stage.forward(microbatch);
    stage.backward(microbatch);
  }
}

/// Other microbatches compute between the halves, as at the last stage of a pipeline.
void play_split(StageOnGpu& stage) {
  stage.forward(0);
  stage.backward(0);
  stage.forward(1);
  stage.backward(1);
  stage.backward_weight(0);
  stage.forward(2);
  stage.backward(2);
  stage.backward_weight(1);
  stage.backward_weight(2);
}

class CudaSplitBackward : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, CudaSplitBackward, testing::ValuesIn(kSplitCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CudaSplitBackward, HasAWholeOnesBitsWhateverComesBetween) {
  TestGpu gpu;
  StageOnGpu whole(GetParam(), false, gpu), split(GetParam(), true, gpu);

  play_whole(whole);
  play_split(split);

  const auto found = split.gradients(), expected = whole.gradients();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(found[i] == expected[i]) << split.name(i);
    const bool is_zero = expected[i] == std::vector<float>(expected[i].size(), 0.0F);
    EXPECT_TRUE(!is_zero || GetParam().mixture.experts > 0) << split.name(i);
  }
}

TEST_P(CudaSplitBackward, AddsToGradientsInTheWeightsHalfAlone) {
  TestGpu gpu;
  StageOnGpu split(GetParam(), true, gpu);
  HookCalls told;

  split.forward(0);
  split.backward(0, hooks_that_note(told));

  for (const auto& gradient : split.gradients())
    EXPECT_TRUE(gradient == std::vector<float>(gradient.size(), 0.0F));
  for (const auto& [call, parameter] : told) EXPECT_EQ(call, 'u') << split.name(parameter);
}

TEST_P(CudaSplitBackward, TellsTheHooksWhatTheHostDoes) {
  const Case& of = GetParam();
  TestGpu gpu;
  StageOnGpu stage(of, true, gpu);
  HookCalls found, expected;
  const auto config = config_of(of);
  const auto host = create_host_stage(config, uncut(config), shape_of(of, true)).value();
  auto values = varied_parameters(host->table().specs);
  Tensors<float> gradients(host->table().specs);
  const auto pointers = gradients.pointers();
  const auto tokens = some_tokens(of.shape, 0), targets = some_targets(of.shape, 0, of.decoder.is_masked);

  stage.forward(0, hooks_that_note(found));
  stage.backward(0, hooks_that_note(found));
  stage.backward_weight(0, hooks_that_note(found));
  const auto hooks = hooks_that_note(expected);
  const StagePass pass{values.constant(), pointers, hooks};
  const StageText text{tokens, targets};
  ASSERT_TRUE(host->forward(0, {}, pass, text));
  ASSERT_TRUE(host->loss(0, 0, pass, text));
  ASSERT_TRUE(host->backward(0, 0, pass, text));
  ASSERT_TRUE(host->backward_weight(0, pass));

  EXPECT_EQ(found, expected);
}

TEST_P(CudaSplitBackward, TakesMemoryOfItsOwnForEachSlot) {
  const Case& of = GetParam();
  const auto config = config_of(of);
  const auto bytes = [&](bool is_split, int slots) {
    auto shape = shape_of(of, is_split);
    shape.slots = {slots, slots};
    return cuda_stage_bytes(config, uncut(config), shape, of.dtype);
  };

  const std::size_t kept = bytes(true, 1) - bytes(false, 1);

  EXPECT_GE(kept, config.layers * of.shape.rows() * 2 * config.width * core::size_of(of.dtype));
  EXPECT_EQ(bytes(true, 3) - bytes(false, 3), 3 * kept);
}

constexpr Decoder kSharedDecoder{.heads = 8,
                                 .key_heads = 4,
                                 .head_size = 8,
                                 .input_biases = true,
                                 .output_bias = true,
                                 .head_norms = true};

// Rows that the members divide, others, and fewer rows than members.
const SharedCase kSharedSplits[] = {
    {untied("f32", DType::f32, Norm::rms, Activation::swiglu, {2, 6}, kSharedDecoder), 2, false},
    {untied("f32", DType::f32, Norm::rms, Activation::swiglu, {2, 6}, kSharedDecoder), 2, true},
    {untied("bf16_layer", DType::bf16, Norm::layer, Activation::gelu, {3, 5}, kSharedDecoder), 2, true},
    {untied("f32_three_rows", DType::f32, Norm::layer, Activation::swiglu, {1, 3}, kSharedDecoder), 4, true},
};

class CudaSplitBackwardOfSharedLayers : public testing::TestWithParam<SharedCase> {};

INSTANTIATE_TEST_SUITE_P(All, CudaSplitBackwardOfSharedLayers, testing::ValuesIn(kSharedSplits),
                         testing::PrintToStringParamName());

TEST_P(CudaSplitBackwardOfSharedLayers, HasTheBitsOfAWholeOne) {
  const auto& [of, size, sequence] = GetParam();
  DeviceRoom room(size);
  std::vector<std::jthread> members;

  for (std::size_t index = 0; index < size; ++index) {
    members.emplace_back([&, &of = of, share = TensorShare{size, index, sequence}, index] {
      TestGpu gpu;
      DeviceSliceGroup group(room, index, gpu);
      StageOnGpu whole(of, false, gpu, share, &group), split(of, true, gpu, share, &group);
      play_whole(whole);
      play_split(split);
      const auto found = split.gradients(), expected = whole.gradients();
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(found[i] == expected[i]) << split.name(i) << " of member " << index;
    });
  }
}

TEST(CudaSplitBackwards, AreRefusedWhereActivationsAreComputedAgain) {
  TestGpu gpu;
  const auto config = config_of(kSplitCases[0]);
  auto shape = shape_of(kSplitCases[0], true);
  shape.keep = Keep::inputs;

  const auto stage =
      create_cuda_stage(config, uncut(config), shape, {.dtype = DType::f32}, gpu.device(), gpu.stream());

  ASSERT_FALSE(stage);
  EXPECT_EQ(stage.error().code, core::Errc::unavailable);
  EXPECT_EQ(stage.error().message,
            "the weights' half of a backward reads activations that --recompute does not keep; leave out "
            "--recompute, or use --pipeline-schedule 1f1b");
}

}  // namespace
}  // namespace troupe::apps::gpt
