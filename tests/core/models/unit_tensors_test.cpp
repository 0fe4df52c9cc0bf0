#include "core/models/unit_tensors.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/core/models/example_configs.hpp"

namespace troupe::core {
namespace {

std::int64_t elements_of(const UnitTensor& tensor) {
  std::int64_t elements = 1;
  for (const auto extent : tensor.shape) elements *= extent;
  return elements;
}

std::vector<UnitTensor> tensors_of(const std::string& config) {
  return unit_tensors(convert(config, {.class_defaults = true})).value();
}

/// The makers of the models count like this.
TEST(UnitTensors, HaveTheParametersThatModelCardsName) {
  const std::map<std::string, std::int64_t> published_counts{
      {"Mistral-7B-v0.3", 7'248'023'552}, {"Qwen2.5-7B", 7'615'616'512},
      {"Qwen3-8B", 8'190'735'360},        {"deepseek-coder-1.3b", 1'346'471'936},
      {"Mixtral-8x7B", 46'702'792'704},   {"Qwen3-30B-A3B", 30'532'122'624}};
  for (const auto& [name, count] : published_counts) {
    std::int64_t elements = 0;
    for (const auto& tensor : tensors_of(published(name))) elements += elements_of(tensor);

    EXPECT_EQ(elements, count) << name;
  }
}

TEST(UnitTensors, BelongToTheEmbeddingEachLayerAndTheHead) {
  const auto tensors = tensors_of(published("Qwen3-8B"));

  std::map<std::int64_t, std::int64_t> elements;
  for (const auto& tensor : tensors) elements[tensor.unit.value()] += elements_of(tensor);
  ASSERT_EQ(elements.size(), 38U);
  EXPECT_EQ(elements.at(0), 151'936 * 4'096);
  EXPECT_EQ(elements.at(1), 2 * 4'096 * 4'096 + 2 * 1'024 * 4'096 + 3 * 4'096 * 12'288 + 2 * 4'096 + 2 * 128);
  EXPECT_EQ(elements.at(36), elements.at(1));
  EXPECT_EQ(elements.at(37), 151'936 * 4'096 + 4'096);
  EXPECT_EQ(tensors.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(tensors.back().name, "lm_head.weight");
  EXPECT_TRUE(tensors.front().is_embedding && tensors.back().is_embedding);
}

TEST(UnitTensors, OfTiedEmbeddingsBothEndsHaveNoUnit) {
  const auto tensors = tensors_of(with(published("Qwen3-8B"), "tie_word_embeddings", "true"));

  std::set<std::string> resident;
  std::set<std::int64_t> units;
  for (const auto& tensor : tensors) {
    if (tensor.unit) units.insert(*tensor.unit);
    if (!tensor.unit) resident.insert(tensor.name);
  }
  EXPECT_EQ(resident, (std::set<std::string>{"model.embed_tokens.weight", "model.norm.weight"}));
  EXPECT_EQ(units.size(), 36U);
  EXPECT_EQ(*units.begin(), 0);
  EXPECT_EQ(*units.rbegin(), 35);
}

}  // namespace
}  // namespace troupe::core
