#include <gtest/gtest.h>

#include <vector>

#include "tests/apps_gpt/gradient_check.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

void expect_gradients(const ModelConfig& config) {
  const std::vector<std::int32_t> tokens = {1, 5, 1, 10, 0, 7, 7, 2, 3, 4};
  const std::vector<std::int32_t> targets = {5, 1, 10, 0, 9, 7, 2, 3, 4, 8};
  auto model = BasicModel<double>::create(config, {.batch = 2, .length = 5}).value();
  Tensors<double> values(model.table().specs), gradients(model.table().specs);
  for (std::size_t i = 0; i < values.tensors.size(); ++i) {
    values.tensors[i] = some_values(values.tensors[i].size(), static_cast<unsigned>(i + 1));
  }

  ASSERT_TRUE(model.forward_backward(values.constant(), gradients.pointers(), tokens, targets));

  for (std::size_t i = 0; i < values.tensors.size(); ++i) {
    expect_gradient(
        values.tensors[i], gradients.tensors[i],
        [&] { return model.forward_loss(values.constant(), tokens, targets).value(); },
        model.table().specs[i].name);
  }
}

struct Variant {
  Norm norm;
  Activation activation;
  bool tied;

  friend std::ostream& operator<<(std::ostream& out, const Variant& of) {
    return out << (of.norm == Norm::rms ? "Rms" : "Layer")
               << (of.activation == Activation::swiglu ? "Swiglu" : "Gelu") << (of.tied ? "Tied" : "Untied");
  }
};

class ModelGradient : public testing::TestWithParam<Variant> {};

TEST_P(ModelGradient, AgreesWithFiniteDifferencesForEveryElement) {
  ModelConfig config{.layers = 2, .heads = 2, .width = 8, .feed_forward = 12, .context = 6, .vocabulary = 11};
  config.norm = GetParam().norm;
  config.activation = GetParam().activation;
  config.tied_embeddings = GetParam().tied;

  expect_gradients(config);
}

INSTANTIATE_TEST_SUITE_P(AllVariants, ModelGradient,
                         testing::Values(Variant{Norm::rms, Activation::swiglu, true},
                                         Variant{Norm::rms, Activation::swiglu, false},
                                         Variant{Norm::rms, Activation::gelu, true},
                                         Variant{Norm::rms, Activation::gelu, false},
                                         Variant{Norm::layer, Activation::swiglu, true},
                                         Variant{Norm::layer, Activation::swiglu, false},
                                         Variant{Norm::layer, Activation::gelu, true},
                                         Variant{Norm::layer, Activation::gelu, false}),
                         testing::PrintToStringParamName());

struct Family {
  const char* name;
  void (*shape)(ModelConfig& config);

  friend std::ostream& operator<<(std::ostream& out, const Family& of) { return out << of.name; }
};

class FamilyGradient : public testing::TestWithParam<Family> {};

TEST_P(FamilyGradient, AgreesWithFiniteDifferencesForEveryElement) {
  ModelConfig config{.layers = 2, .heads = 4, .width = 8, .feed_forward = 12, .context = 6, .vocabulary = 11};
  config.tied_embeddings = false;
  GetParam().shape(config);

  expect_gradients(config);
}

INSTANTIATE_TEST_SUITE_P(
    Each, FamilyGradient,
    testing::Values(Family{"Llama3",
                           [](ModelConfig& c) {
                             c.key_value_heads = 2;
                             c.rope_scaling = {.kind = RotaryScaling::Kind::llama3, .factor = 8};
                           }},
                    Family{"LlamaWithBiases",
                           [](ModelConfig& c) { c.query_key_value_bias = c.attention_output_bias = true; }},
                    Family{"Mistral",
                           [](ModelConfig& c) {
                             c.key_value_heads = 1;
                             c.head_dimension = 6;
                           }},
                    Family{"Qwen2",
                           [](ModelConfig& c) {
                             c.key_value_heads = 2;
                             c.query_key_value_bias = true;
                             c.tied_embeddings = true;
                           }},
                    Family{"Qwen3",
                           [](ModelConfig& c) {
                             c.key_value_heads = 2;
                             c.head_dimension = 4;
                             c.query_key_norm = true;
                           }},
                    Family{"Everything",
                           [](ModelConfig& c) {
                             c.key_value_heads = 2;
                             c.head_dimension = 6;
                             c.query_key_value_bias = c.attention_output_bias = c.query_key_norm = true;
                             c.rope_scaling = {.kind = RotaryScaling::Kind::linear, .factor = 2};
                           }}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::apps::gpt
