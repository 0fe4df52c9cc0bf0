#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/apps_gpt_cuda/members.hpp"

// Ranks that share each layer are threads here, with a GPU each, or the same one.

namespace troupe::apps::gpt {
namespace {

constexpr Decoder kFourHeads{.heads = 4};
constexpr Decoder kAllOfIt{.heads = 8,
                           .key_heads = 4,
                           .head_size = 8,
                           .input_biases = true,
                           .output_bias = true,
                           .head_norms = true,
                           .is_masked = true};

// Numbers of rows that the members do not divide, and fewer rows than members.
const SharedCase kSharedCases[] = {
    {{"f32_tied", DType::f32, Norm::rms, Activation::swiglu, true, {2, 6}, kFourHeads}, 2, false},
    {{"f32_tied", DType::f32, Norm::rms, Activation::swiglu, true, {2, 6}, kFourHeads}, 2, true},
    {{"f32_everything", DType::f32, Norm::layer, Activation::gelu, false, {3, 5}, kAllOfIt}, 4, false},
    {{"f32_everything", DType::f32, Norm::layer, Activation::gelu, false, {3, 5}, kAllOfIt}, 4, true},
    {{"f32_three_rows", DType::f32, Norm::layer, Activation::swiglu, true, {1, 3}, kFourHeads}, 4, true},
    {{"bf16_tied", DType::bf16, Norm::rms, Activation::swiglu, true, {2, 6}}, 2, false},
    {{"bf16_everything", DType::bf16, Norm::layer, Activation::gelu, false, {3, 5}, kAllOfIt}, 2, true},
};

class CudaTensorParallel : public testing::TestWithParam<SharedCase> {
 protected:
  void play(Keep keep, const std::function<void(std::size_t index, MemberOnGpu& member)>& by_member) {
    const auto& [of, size, sequence] = GetParam();
    play_on_gpus(of, keep, size, sequence, by_member);
  }
};

INSTANTIATE_TEST_SUITE_P(All, CudaTensorParallel, testing::ValuesIn(kSharedCases),
                         testing::PrintToStringParamName());

/// Parts of gradients put together again, and those of parameters that all members keep whole as they are.
class GradientsOfMembers {
 public:
  explicit GradientsOfMembers(std::size_t members) : parts_(members) {}

  void take(std::size_t index, MemberOnGpu& member) {
    for (std::size_t i = 0; i < member.table().size(); ++i) parts_[index].push_back(member.gradient(i));
  }

  std::vector<float> whole(const SharedTable& table, std::size_t parameter) const {
    std::vector<float> whole(table.whole().specs[parameter].elements());
    for (std::size_t member = 0; member < parts_.size(); ++member) {
      const auto& part = parts_[member][parameter];
      copy_from_part(table.layout(parameter, member), part.data(), whole.data());
    }
    return whole;
  }

  friend bool operator==(const GradientsOfMembers&, const GradientsOfMembers&) = default;

 private:
  std::vector<std::vector<std::vector<float>>> parts_;  ///< by member and parameter
};

TEST_P(CudaTensorParallel, HasTheLossGradientsAndLogitsOfOneHost) {
  const auto& [of, size, sequence] = GetParam();
  const double tolerance = gradient_tolerance(of.dtype);
  const SharedTable table(config_of(of), {size, 0, sequence});
  auto values = varied_parameters(table.whole().specs);
  for (auto& tensor : values.tensors) {
    for (float& value : tensor) {
      if (of.dtype == DType::bf16) value = widened(narrowed<Bf16>(value));
    }
  }
  OnHost host(of, values);
  double losses[2];
  for (const std::uint64_t seed : {1, 2}) losses[seed - 1] = host.pass(seed);
  auto tokens = some_tokens(of.shape, 5);
  GradientsOfMembers gradients(size);

  play(Keep::activations, [&, &of = of](std::size_t index, MemberOnGpu& member) {
    for (const std::uint64_t seed : {1, 2})
      EXPECT_NEAR(member.pass(seed), losses[seed - 1], loss_tolerance(of.dtype) * losses[seed - 1]);
    gradients.take(index, member);
    for (const std::size_t length : {of.shape.length, std::size_t{1}}) {
      const auto found = member.logits(length);
      if (index > 0) continue;
      const auto expected =
          host.model.logits(host.values.constant(), std::span(tokens).first(length)).value();
      EXPECT_LT(difference(found, std::vector<double>(expected.begin(), expected.end())), tolerance);
    }
  });

  for (std::size_t i = 0; i < table.size(); ++i) {
    expect_gradient(of.dtype, gradients.whole(table, i), host.gradients.tensors[i],
                    table.whole().specs[i].name);
  }
}

TEST_P(CudaTensorParallel, RepeatsItsBitsAlsoWithRecomputedActivations) {
  const auto& [of, size, sequence] = GetParam();
  GradientsOfMembers first(size), second(size);
  std::vector<double> losses(2 * size);
  std::vector<std::size_t> bytes(2 * size);

  play(Keep::activations, [&, &size = size](std::size_t index, MemberOnGpu& member) {
    losses[index] = member.pass(1);
    first.take(index, member);
    bytes[index] = member.model().activation_bytes();
  });
  play(Keep::inputs, [&, &size = size](std::size_t index, MemberOnGpu& member) {
    member.logits(2);
    losses[size + index] = member.pass(1);
    second.take(index, member);
    bytes[size + index] = member.model().activation_bytes();
  });

  EXPECT_EQ(losses, std::vector<double>(2 * size, losses[0])) << "the same at all members";
  EXPECT_TRUE(second == first);
  for (std::size_t i = 0; i < size; ++i) EXPECT_LT(bytes[size + i], bytes[i]);
}

TEST_P(CudaTensorParallel, TellsTheHooksWhatTheHostDoes) {
  const auto& [of, size, sequence] = GetParam();
  std::vector<HookCalls> expected(size), found(size);
  play_members<float>(size, [&, &of = of, &sequence = sequence](TensorGroup<float>& group) {
    const auto model = create_host_model(config_of(of), of.shape, Keep::activations,
                                         {group.size(), group.index(), sequence}, &group)
                           .value();
    Tensors<float> values(model->table().specs), gradients(model->table().specs);
    std::vector<const std::byte*> parameters;
    for (const auto& tensor : values.tensors)
      parameters.push_back(reinterpret_cast<const std::byte*>(tensor.data()));
    const auto tokens = some_tokens(of.shape, 1);
    ASSERT_TRUE(model->forward_backward(parameters, gradients.pointers(), tokens, tokens,
                                        hooks_that_note(expected[group.index()])));
  });

  play(Keep::activations,
       [&](std::size_t index, MemberOnGpu& member) { member.pass(1, hooks_that_note(found[index])); });

  EXPECT_EQ(found, expected);
}

TEST(CudaShares, RefuseWhatTheyCannotCompute) {
  const auto refusal = [](const std::function<void(ModelConfig&)>& change, const TensorShare& share) {
    ModelConfig config = preset("tiny").value();
    config.heads = 4;
    change(config);
    const auto checked = check_cuda_model(config, {1, 4}, DType::bf16, share);
    return checked ? std::string() : checked.error().message;
  };
  const auto nothing = [](ModelConfig&) {};

  EXPECT_EQ(refusal(nothing, {2, 0}), "");
  EXPECT_NE(refusal(nothing, {3, 0}).find("cuts the heads evenly, found 4 for 3 ranks"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.feed_forward = 40; }, {2, 0}).find("of each of 2 ranks must be"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.head_dimension = 4; }, {4, 0}).find("of each of 4 ranks times"),
            std::string::npos);
  const auto add_experts = [](std::size_t width) {
    return [width](ModelConfig& c) { c.experts = {.count = 4, .feed_forward = width}; };
  };
  EXPECT_EQ(refusal(add_experts(16), {2, 0}), "");
  EXPECT_NE(refusal(add_experts(8), {2, 0}).find("the feed_forward of experts must be multiples of 8"),
            std::string::npos);
  EXPECT_NE(
      refusal([](ModelConfig& c) { c.heads = c.feed_forward = c.vocabulary = 512, c.head_dimension = 2; },
              {512, 0})
          .find("at most 256 ranks"),
      std::string::npos);
}

}  // namespace
}  // namespace troupe::apps::gpt
