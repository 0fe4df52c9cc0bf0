#include "core/models/activations.hpp"

#include <gtest/gtest.h>

#include "tests/core/models/example_configs.hpp"

namespace troupe::core {
namespace {

constexpr std::int64_t s = 512, b = 2, h = 1024, a = 16, L = 3;

/// A GPT of Korthikanti et al.: layer norms, no gate, an MLP of 4 h, as many keys as heads.
ModelConfig gpt() {
  ModelConfig model;
  model.transformer.num_layers = L;
  model.transformer.hidden_size = h;
  model.transformer.num_attention_heads = a;
  model.builder.vocab_size = 1000;
  return model;
}

constexpr std::int64_t kStatistics = 2 * 2 * 4;  // mean and deviation of two norms, f32, of each token

/// Their table of section 4.1, without the masks and outputs of dropout: attention 10 sbh + 2 as^2 b, MLP
/// 18 sbh, norms 4 sbh.
TEST(Activations, OfALayerAreThePapersWithoutDropout) {
  const auto bytes = activation_bytes(gpt(), {.sequences = b, .length = s, .keep_probabilities = true});

  EXPECT_EQ(bytes.layers, L * (32 * s * b * h + 2 * a * s * s * b + kStatistics * s * b));
}

TEST(Activations, WithoutProbabilitiesKeepOneNumberOfEachRow) {
  const auto bytes = activation_bytes(gpt(), {.sequences = b, .length = s});

  EXPECT_EQ(bytes.layers, L * (32 * s * b * h + 4 * a * s * b + kStatistics * s * b));
}

/// Full recomputation keeps 2 sbh of each layer (section 4.2.2), and computes one layer anew at a time.
TEST(Activations, WithRecomputationAreLayerInputsAndOneLayer) {
  const MicrobatchShape shape{.sequences = b, .length = s};
  auto again = shape;
  again.recompute = true;

  const auto kept = activation_bytes(gpt(), shape);
  const auto recomputed = activation_bytes(gpt(), again);

  EXPECT_EQ(recomputed.layers, L * 2 * s * b * h);
  EXPECT_EQ(recomputed.transient - kept.transient, kept.layers / L - 2 * s * b * h);
  EXPECT_EQ(recomputed.head, kept.head);
}

/// Half of the rows, of probabilities too, which have as many columns; beside them keys, values, their
/// gradients and what is exchanged, each of whole sequences and as wide as the model.
TEST(Activations, OfASharedSequenceAreThoseOfItsRows) {
  MicrobatchShape shape{.sequences = b, .length = s, .keep_probabilities = true};
  const auto whole = activation_bytes(gpt(), shape);
  shape.context_parallel = 2;

  const auto part = activation_bytes(gpt(), shape);

  EXPECT_EQ(part.layers, whole.layers / 2);
  EXPECT_EQ(part.head, whole.head / 2);
  EXPECT_EQ(part.transient, whole.transient / 2 + 5 * 2 * s * b * h);
}

TEST(Activations, GrowWithTokensAndBytesPerElement) {
  const auto model = convert(published("Qwen3-8B"), {.class_defaults = true});
  const auto one = activation_bytes(model, {.length = 128});
  const auto two = activation_bytes(model, {.sequences = 2, .length = 128});
  const auto wide = activation_bytes(model, {.length = 128, .dtype = DType::f32});

  EXPECT_EQ(two.total(), 2 * one.total());
  EXPECT_GT(wide.total(), one.total() * 19 / 10);
  EXPECT_LT(wide.total(), 2 * one.total()) << "statistics are f32 in both";
}

TEST(Activations, OfExpertsAreThoseATokenReaches) {
  const auto sparse = convert(published("Qwen3-30B-A3B"), {.class_defaults = true});
  const auto bytes = activation_bytes(sparse, {.length = 1});

  // Per token and layer: 2048 hidden, 32 heads and 4 groups of 128 with norms, 8 of 128 experts of 768.
  const std::int64_t elements = 4 * 2048 + 2 * 4096 + 2 * 512 + (4096 + 512) + 8 * (2048 + 3 * 768);
  const std::int64_t numbers = 2 + (32 + 4) + 128 + 32;
  EXPECT_EQ(bytes.layers, 48 * (2 * elements + 4 * numbers));
}

TEST(Activations, OfSizesBeyondReasonDoNotOverflow) {
  auto model = gpt();
  model.transformer.num_layers = 4096;
  model.transformer.hidden_size = std::int64_t{1} << 30;

  const auto bytes = activation_bytes(model, {.sequences = 1 << 20, .length = 1 << 24, .recompute = true});

  EXPECT_GT(bytes.total(), std::int64_t{1} << 60);
}

}  // namespace
}  // namespace troupe::core
