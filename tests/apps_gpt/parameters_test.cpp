#include "apps/gpt/model/parameters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace troupe::apps::gpt {
namespace {

ModelConfig one_layer() {
  return {.layers = 1, .heads = 2, .width = 64, .feed_forward = 96, .context = 8};
}

std::vector<std::string> names_of(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters(config)) names.push_back(spec.name);
  return names;
}

std::vector<float> values_of(const ParameterSpec& spec, std::uint64_t seed) {
  std::vector<float> values(spec.elements());
  initialise(spec, seed, {0, static_cast<std::int64_t>(values.size())}, values);
  return values;
}

TEST(Parameters, HaveTheNamesAndTheOrderOfALlama) {
  EXPECT_THAT(
      names_of(one_layer()),
      testing::ElementsAre("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                           "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                           "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
                           "model.layers.0.post_attention_layernorm.weight",
                           "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                           "model.layers.0.mlp.down_proj.weight", "model.norm.weight"));
}

TEST(Parameters, OfTheOtherVariantHaveNormBiasesAndHeads) {
  ModelConfig config = one_layer();
  config.norm = Norm::layer;
  config.activation = Activation::gelu;
  config.tied_embeddings = false;

  const auto names = names_of(config);

  EXPECT_THAT(names, testing::Contains("model.norm.bias"));
  EXPECT_THAT(names, testing::Contains("model.layers.0.input_layernorm.bias"));
  EXPECT_THAT(names, testing::Not(testing::Contains("model.layers.0.mlp.gate_proj.weight")));
  EXPECT_EQ(names.back(), "lm_head.weight");
}

TEST(Parameters, OfAttentionHaveTheNamesAndShapesOfQwens) {
  ModelConfig config = one_layer();
  config.key_value_heads = 1;
  config.head_dimension = 6;
  config.query_key_value_bias = config.attention_output_bias = config.query_key_norm = true;

  std::vector<std::string> found;
  for (const ParameterSpec& spec : parameters(config)) {
    const auto middle = spec.name.find("self_attn.");
    if (middle == std::string::npos) continue;
    found.push_back(spec.name.substr(middle + 10) + " " + testing::PrintToString(spec.shape) +
                    (spec.weight_decay ? " decays" : ""));
  }

  EXPECT_THAT(found, testing::ElementsAre("q_proj.weight { 12, 64 } decays", "q_proj.bias { 12 }",
                                          "k_proj.weight { 6, 64 } decays", "k_proj.bias { 6 }",
                                          "v_proj.weight { 6, 64 } decays", "v_proj.bias { 6 }",
                                          "q_norm.weight { 6 }", "k_norm.weight { 6 }",
                                          "o_proj.weight { 64, 12 } decays", "o_proj.bias { 64 }"));
}

TEST(Parameters, OfABlockAreInItsUnit) {
  ModelConfig config = one_layer();
  config.layers = 2;
  config.norm = Norm::layer;
  config.query_key_value_bias = config.attention_output_bias = config.query_key_norm = true;

  for (const bool tied : {true, false}) {
    config.tied_embeddings = tied;
    for (const ParameterSpec& spec : parameters(config)) {
      std::optional<std::size_t> expected;
      if (!tied) expected = spec.name == "model.embed_tokens.weight" ? 0 : 3;
      if (spec.name.starts_with("model.layers.0.")) expected = tied ? 0 : 1;
      if (spec.name.starts_with("model.layers.1.")) expected = tied ? 1 : 2;
      EXPECT_EQ(spec.unit, expected) << spec.name << (tied ? ", tied" : "");
    }
  }
}

// Covers unit-32.
TEST(Parameters, BeginInPartsAsTheyBeginWhole) {
  const ParameterSpec spec = parameters(one_layer()).front();
  const auto whole = values_of(spec, 3);
  std::vector<float> part(100);

  initialise(spec, 3, {1000, 1100}, part);

  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 1000));
}

TEST(Parameters, AreAsManyAsTheShapesSay) {
  // V*C + 4*C*C + 3*F*C + 3 norms of C
  EXPECT_EQ(parameter_count(one_layer()), 256U * 64 + 4 * 64 * 64 + 3 * 96 * 64 + 3 * 64);
}

TEST(Parameters, MatricesDecayAndNormsDoNot) {
  for (const ParameterSpec& spec : parameters(one_layer()))
    EXPECT_EQ(spec.weight_decay, spec.shape.size() == 2);
}

TEST(Initialise, DependsOnSeedAndNameAlone) {
  const auto specs = parameters(one_layer());

  EXPECT_EQ(values_of(specs[2], 7), values_of(specs[2], 7));
  EXPECT_NE(values_of(specs[2], 7), values_of(specs[2], 8));
  EXPECT_NE(values_of(specs[2], 7), values_of(specs[3], 7));
}

TEST(Initialise, DrawsMatricesWithTheDeviationAndNormsAsOne) {
  for (const ParameterSpec& spec : parameters(one_layer())) {
    const auto values = values_of(spec, 7);
    double sum = 0, squares = 0;
    for (const float value : values) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const auto count = static_cast<double>(values.size());
    if (spec.shape.size() == 1) {
      EXPECT_EQ(sum, count) << spec.name;
      continue;
    }
    const bool residual =
        spec.name.find("o_proj") != std::string::npos || spec.name.find("down") != std::string::npos;
    const double deviation = residual ? 0.02 / std::sqrt(2.0) : 0.02;
    EXPECT_NEAR(sum / count, 0, 5 * deviation / std::sqrt(count)) << spec.name;
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 5 * deviation / std::sqrt(2 * count)) << spec.name;
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
