#include <gtest/gtest.h>

#include "tests/apps_gpt_cuda/on_gpu.hpp"

namespace troupe::apps::gpt {
namespace {

class CudaModelTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, CudaModelTest, testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CudaModelTest, HasTheHostsLossAndGradients) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);

  for (const std::uint64_t seed : {1, 2}) {
    const double expected = host.pass(seed);
    EXPECT_NEAR(gpu.pass(seed), expected, loss_tolerance(GetParam().dtype) * expected);
    EXPECT_NEAR(gpu.loss(seed), expected, loss_tolerance(GetParam().dtype) * expected);
  }

  const auto gradients = gpu.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    expect_gradient(GetParam().dtype, gradients[i], host.gradients.tensors[i],
                    host.model.table().specs[i].name);
  }
}

TEST_P(CudaModelTest, HasTheHostsSumsOfLossesAndTheirGradients) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);

  const double expected = host.pass(1, hooks_of_sums());

  EXPECT_NEAR(gpu.pass(1, hooks_of_sums()), expected, loss_tolerance(GetParam().dtype) * expected);
  const auto gradients = gpu.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    expect_gradient(GetParam().dtype, gradients[i], host.gradients.tensors[i],
                    host.model.table().specs[i].name);
  }
}

TEST_P(CudaModelTest, GivesTheSameBitsWhateverCameBefore) {
  OnGpu one(GetParam()), other(GetParam());
  const double first = one.pass(1);
  const auto first_gradients = one.gradients();
  one.clear_gradients();

  const double second = one.pass(2);
  other.pass(3);
  other.clear_gradients();
  const double other_second = other.pass(2);
  const auto other_second_gradients = other.gradients();
  other.clear_gradients();

  EXPECT_EQ(second, other_second);
  EXPECT_EQ(one.gradients(), other_second_gradients);
  EXPECT_EQ(other.pass(1), first);
  EXPECT_EQ(other.gradients(), first_gradients);
}

// Covers unit-19.
TEST_P(CudaModelTest, GivesTheSameBitsWhenActivationsAreRecomputed) {
  OnGpu keeping(GetParam()), again(GetParam(), Keep::inputs);

  for (const std::uint64_t seed : {1, 2}) {
    again.loss(seed + 10);
    EXPECT_EQ(again.pass(seed), keeping.pass(seed));
  }

  EXPECT_EQ(again.gradients(), keeping.gradients());
  EXPECT_LT(again.model().activation_bytes(), keeping.model().activation_bytes());
}

TEST_P(CudaModelTest, TellsTheHooksWhatTheHostDoes) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);
  HookCalls found, expected;

  gpu.pass(1, hooks_that_note(found));
  const auto tokens = some_tokens(host.model.shape(), 1);
  ASSERT_TRUE(host.model.forward_backward(host.values.constant(), host.gradients.pointers(), tokens, tokens,
                                          hooks_that_note(expected)));

  EXPECT_EQ(found, expected);
}

TEST_P(CudaModelTest, PredictsWhatTheHostPredicts) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);
  auto sequence = some_tokens(gpu.model().shape(), 5);
  sequence.resize(gpu.model().shape().length - 1);

  const auto found = gpu.model().logits(gpu.parameters(), sequence, {}).value();
  const auto expected = host.model.logits(host.values.constant(), sequence).value();

  EXPECT_LT(difference(std::vector<float>(found.begin(), found.end()),
                       std::vector<double>(expected.begin(), expected.end())),
            gradient_tolerance(GetParam().dtype));
}

}  // namespace
}  // namespace troupe::apps::gpt
