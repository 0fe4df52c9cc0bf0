#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/gpt/model/host_engine.hpp"
#include "tests/apps_gpt/gradient_check.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::Each;
using testing::ElementsAre;

const std::vector<std::int32_t> kTokens = {1, 5, 1, 10, 0, 7, 7, 2, 3, 4};
const std::vector<std::int32_t> kTargets = {5, 1, 10, 0, 9, 7, 2, 3, 4, 8};

ModelConfig mixtral() {
  ModelConfig config{.layers = 2, .heads = 2, .width = 8, .feed_forward = 12, .context = 6, .vocabulary = 11};
  config.tied_embeddings = false;
  config.experts = {.count = 4, .feed_forward = 6, .names = ExpertConfig::Names::mixtral};
  return config;
}

ModelConfig qwen2() {
  ModelConfig config = mixtral();
  config.query_key_value_bias = true;
  config.experts = {.count = 3,
                    .choices = 2,
                    .feed_forward = 5,
                    .shared_feed_forward = 7,
                    .shared_gate = true,
                    .score_before_choice = true};
  return config;
}

ModelConfig qwen3() {
  ModelConfig config = mixtral();
  config.query_key_norm = true;
  config.experts = {.count = 5, .choices = 3, .feed_forward = 4, .dense_layers = {0}};
  return config;
}

template <class T>
Tensors<T> any_values(const BasicModel<T>& model) {
  Tensors<T> values(model.table().specs);
  for (std::size_t i = 0; i < values.tensors.size(); ++i) {
    const auto some = some_values(values.tensors[i].size(), static_cast<unsigned>(i + 1));
    std::copy(some.begin(), some.end(), values.tensors[i].begin());
  }
  return values;
}

/// In the last pass.
double loss_of_routers(const BasicModel<double>& model) {
  double sum = 0;
  for (const ExpertRoutes& routes : model.routes()) sum += routes.loss;
  return sum;
}

/// Gradients of the whole training loss, to which the routers' losses belong.
void expect_gradients(const ModelConfig& config) {
  auto model = BasicModel<double>::create(config, {.batch = 2, .length = 5}).value();
  auto values = any_values(model);
  Tensors<double> gradients(model.table().specs);

  ASSERT_TRUE(model.forward_backward(values.constant(), gradients.pointers(), kTokens, kTargets));

  for (std::size_t i = 0; i < values.tensors.size(); ++i) {
    expect_gradient(
        values.tensors[i], gradients.tensors[i],
        [&] {
          return model.forward_loss(values.constant(), kTokens, kTargets).value() + loss_of_routers(model);
        },
        model.table().specs[i].name);
  }
}

TEST(ExpertModel, IsRefusedWhereActivationsAreToBeComputedAgain) {
  const auto model = Model::create(mixtral(), {.batch = 2, .length = 5}, Keep::inputs);

  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, testing::HasSubstr("leave --recompute out"));
}

TEST(ExpertModel, GradientsOfMixtralAgreeWithFiniteDifferences) {
  expect_gradients(mixtral());
}

TEST(ExpertModel, GradientsWithASharedExpertAgreeWithFiniteDifferences) {
  expect_gradients(qwen2());
  auto ungated = qwen2();
  ungated.experts.shared_gate = false;
  expect_gradients(ungated);
}

TEST(ExpertModel, GradientsAmongDenseLayersAgreeWithFiniteDifferences) {
  expect_gradients(qwen3());
}

TEST(ExpertModel, GradientsWithRouterLossesAgreeWithFiniteDifferences) {
  auto config = mixtral();
  config.experts.balance = 0.3;
  config.experts.z_loss = 0.1;
  expect_gradients(config);
}

TEST(ExpertModel, ScalesTheGradientsOfRoutersLossesAsAllOthers) {
  auto config = mixtral();
  config.experts.balance = 0.3;
  config.experts.z_loss = 0.1;
  auto model = BasicModel<double>::create(config, {.batch = 2, .length = 5}).value();
  auto values = any_values(model);
  Tensors<double> plain(model.table().specs), scaled(model.table().specs);
  StepHooks hooks;
  hooks.loss_scale = 1024;

  ASSERT_TRUE(model.forward_backward(values.constant(), plain.pointers(), kTokens, kTargets));
  ASSERT_TRUE(model.forward_backward(values.constant(), scaled.pointers(), kTokens, kTargets, hooks));

  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    for (double& value : plain.tensors[i]) value *= hooks.loss_scale;
    EXPECT_EQ(scaled.tensors[i], plain.tensors[i]) << model.table().specs[i].name;
  }
}

TEST(ExpertModel, GradientsWithDroppedChoicesAgreeWithFiniteDifferences) {
  auto config = qwen2();
  config.experts.capacity_factor = 0.7;
  config.experts.balance = 0.1;
  expect_gradients(config);
}

/// The layer again, token by token and choice by choice.
std::vector<double> by_hand(const ExpertConfig& config, std::size_t width, const Tensors<double>& values,
                            const ExpertLayerParameters& parameters, const std::vector<double>& x) {
  const auto product = [&](std::size_t weight, std::size_t rows, const std::vector<double>& input) {
    std::vector<double> result(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < input.size(); ++c)
        result[r] += values.tensors[weight][r * input.size() + c] * input[c];
    }
    return result;
  };
  const auto mlp = [&](const ExpertWeights& weights, std::size_t rows, const std::vector<double>& token) {
    auto gate = product(weights.gate, rows, token);
    const auto up = product(weights.up, rows, token);
    for (std::size_t i = 0; i < rows; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return product(weights.down, width, gate);
  };
  std::vector<double> y;
  for (std::size_t token = 0; token < x.size() / width; ++token) {
    const std::vector<double> row(x.begin() + static_cast<std::ptrdiff_t>(token * width),
                                  x.begin() + static_cast<std::ptrdiff_t>((token + 1) * width));
    const auto logits = product(parameters.router, config.count, row);
    std::vector<std::size_t> order(config.count);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    double all = 0;
    for (std::size_t e = 0; e < config.count; ++e) {
      const bool counts =
          config.score_before_choice ||
          std::find(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(config.choices), e) !=
              order.begin() + static_cast<std::ptrdiff_t>(config.choices);
      if (counts) all += std::exp(logits[e]);
    }
    std::vector<double> sum(width);
    for (std::size_t k = 0; k < config.choices; ++k) {
      const auto output = mlp(parameters.experts[order[k]], config.feed_forward, row);
      for (std::size_t c = 0; c < width; ++c) sum[c] += std::exp(logits[order[k]]) / all * output[c];
    }
    if (parameters.shared) {
      const auto output = mlp(*parameters.shared, config.shared_feed_forward, row);
      const double gate = product(*parameters.shared_gate, 1, row)[0];
      for (std::size_t c = 0; c < width; ++c) sum[c] += output[c] / (1 + std::exp(-gate));
    }
    y.insert(y.end(), sum.begin(), sum.end());
  }
  return y;
}

TEST(ExpertModel, LayerIsItsFormulaTokenByToken) {
  for (const ModelConfig& config : {mixtral(), qwen2(), qwen3()}) {
    constexpr std::size_t kRows = 7;
    const auto table = parameter_table(config);
    Tensors<double> values(table.specs);
    for (std::size_t i = 0; i < values.tensors.size(); ++i)
      values.tensors[i] = some_values(values.tensors[i].size(), static_cast<unsigned>(i + 1));
    const auto x = some_values(kRows * config.width, 99);
    using Engine = HostEngine<double>;
    Carver plan(nullptr, Engine::kAlign);
    carve_experts<Engine>(plan, kRows, config.width, config.experts);
    std::vector<std::byte> memory(plan.bytes());
    std::vector<double> gathered(kRows * config.experts.choices * config.width);
    Carver place(memory.data(), Engine::kAlign);
    auto layer = carve_experts<Engine>(place, kRows, config.width, config.experts);
    ExpertRoutes routes;
    layer.routes = &routes;
    layer.gathered = gathered.data();
    std::vector<double> output(x.size());
    const StepHooks hooks;

    const Engine engine(rotary_of<double>(config, kRows, {}));
    const BlockContext<Engine> context{config, {1, kRows}, engine};
    const Pass<double> pass{values.constant(), {}, hooks};

    const auto done = expert_layer_forward(context, *table.blocks.back().experts, layer,
                                           static_cast<const double*>(x.data()), pass, output.data());

    ASSERT_TRUE(done);
    const auto wanted = by_hand(config.experts, config.width, values, *table.blocks.back().experts, x);
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(output[i], wanted[i], 1e-12);
  }
}

TEST(ExpertModel, EveryParameterIsReadyOnceWhereverTheTokensGo) {
  auto model = BasicModel<float>::create(mixtral(), {.batch = 2, .length = 5}).value();
  auto values = any_values(model);
  // Expert 2 of the last layer has all tokens, as far as one can: its logits are those of a norm's output.
  auto& router = values.tensors[model.table().blocks[1].experts->router];
  std::fill(router.begin(), router.end(), 0.0F);
  Tensors<float> gradients(model.table().specs);
  std::vector<int> ready(values.tensors.size());
  const StepHooks hooks{.gradient_ready = [&](std::size_t parameter) { ++ready[parameter]; }};

  ASSERT_TRUE(model.forward_backward(values.constant(), gradients.pointers(), kTokens, kTargets, hooks));

  EXPECT_THAT(ready, Each(1));
  // Equal logits choose the first two experts.
  EXPECT_THAT(model.routes()[1].chosen, ElementsAre(10, 10, 0, 0));
  EXPECT_THAT(gradients.tensors[model.table().blocks[1].experts->experts[3].down], Each(0.0F));
}

TEST(ExpertModel, EvaluationLeavesOutTheLossesOfRouters) {
  auto config = mixtral();
  config.experts.balance = 0.5;
  auto model = BasicModel<double>::create(config, {.batch = 2, .length = 5}).value();
  auto values = any_values(model);
  Tensors<double> gradients(model.table().specs);

  const double training =
      model.forward_backward(values.constant(), gradients.pointers(), kTokens, kTargets).value();
  const double routers = loss_of_routers(model);
  const double evaluation = model.forward_loss(values.constant(), kTokens, kTargets).value();

  EXPECT_GT(routers, 0.9) << "two layers, at least 0.5 each where choices and scores agree";
  EXPECT_NEAR(training, evaluation + routers, 1e-12);
}

TEST(ExpertModel, NamesAreThoseOfHuggingFace) {
  const auto has = [](const ModelConfig& config, const std::string& name, std::vector<std::size_t> shape) {
    for (const auto& spec : parameters(config)) {
      if (spec.name == name) return spec.shape == shape;
    }
    return false;
  };

  EXPECT_TRUE(has(mixtral(), "model.layers.1.block_sparse_moe.gate.weight", {4, 8}));
  EXPECT_TRUE(has(mixtral(), "model.layers.1.block_sparse_moe.experts.3.w1.weight", {6, 8}));
  EXPECT_TRUE(has(mixtral(), "model.layers.1.block_sparse_moe.experts.3.w2.weight", {8, 6}));
  EXPECT_TRUE(has(mixtral(), "model.layers.1.block_sparse_moe.experts.3.w3.weight", {6, 8}));
  EXPECT_TRUE(has(qwen3(), "model.layers.0.mlp.gate_proj.weight", {12, 8}));
  EXPECT_TRUE(has(qwen3(), "model.layers.1.mlp.experts.4.down_proj.weight", {8, 4}));
  EXPECT_TRUE(has(qwen2(), "model.layers.0.mlp.shared_expert.up_proj.weight", {7, 8}));
  EXPECT_TRUE(has(qwen2(), "model.layers.0.mlp.shared_expert_gate.weight", {1, 8}));
}

TEST(ExpertModel, RefusesWhatCannotBe) {
  const auto error = [](void (*change)(ModelConfig&)) {
    auto config = mixtral();
    change(config);
    return validate(config).error().message;
  };

  EXPECT_THAT(error([](ModelConfig& c) { c.experts.choices = 5; }),
              testing::HasSubstr("1..4 experts, found 5"));
  EXPECT_THAT(error([](ModelConfig& c) { c.experts.feed_forward = 0; }),
              testing::HasSubstr("the feed_forward of experts must lie in 1..262144, found 0"));
  EXPECT_THAT(error([](ModelConfig& c) { c.activation = Activation::gelu; }),
              testing::HasSubstr("use the activation swiglu"));
  EXPECT_THAT(error([](ModelConfig& c) { c.experts.shared_gate = true; }),
              testing::HasSubstr("a gate of the shared expert needs one"));
  EXPECT_THAT(error([](ModelConfig& c) { c.experts.capacity_factor = 0; }),
              testing::HasSubstr("capacity factor of experts must be above 0"));
  EXPECT_THAT(error([](ModelConfig& c) { c.experts.balance = -1; }),
              testing::HasSubstr("0 or more, found -1"));
}

}  // namespace
}  // namespace troupe::apps::gpt
