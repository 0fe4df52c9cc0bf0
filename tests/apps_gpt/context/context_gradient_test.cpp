#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/model/sequences.hpp"
#include "tests/apps_gpt/gradient_check.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr std::size_t kLength = 8;

struct ContextFamily {
  const char* name;
  void (*shape)(ModelConfig& config);

  friend std::ostream& operator<<(std::ostream& out, const ContextFamily& of) { return out << of.name; }
};

const ContextFamily kContextFamilies[] = {
    {"Plain", [](ModelConfig&) {}},
    {"LayerNormGelu",
     [](ModelConfig& c) {
       c.norm = Norm::layer;
       c.activation = Activation::gelu;
     }},
    {"GroupedKeysWithNorms",
     [](ModelConfig& c) {
       c.key_value_heads = 2;
       c.query_key_norm = true;
       c.tied_embeddings = false;
     }},
};

TEST(ContextParallel, GivesEachMemberAnEarlyAndALatePiece) {
  using Positions = std::vector<std::size_t>;
  EXPECT_EQ(positions_of_member(8, 1, 0), (Positions{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(positions_of_member(8, 2, 0), (Positions{0, 1, 6, 7}));
  EXPECT_EQ(positions_of_member(8, 2, 1), (Positions{2, 3, 4, 5}));
  EXPECT_EQ(positions_of_member(16, 4, 1), (Positions{2, 3, 12, 13}));
}

class ContextGradient : public testing::TestWithParam<std::tuple<ContextFamily, std::size_t, Keep>> {};

/// The members' gradients, each weighed by its part of the rows that are learned, add up to those of one
/// rank.
TEST_P(ContextGradient, OfEveryParameterAddsUpToOneRanks) {
  const auto& [family, size, keep] = GetParam();
  ModelConfig config{.layers = 2, .heads = 4, .width = 8, .feed_forward = 12, .context = 9, .vocabulary = 12};
  family.shape(config);
  const std::vector<std::int32_t> tokens = {1, 5, 1, 10, 0, 7, 7, 2, 3, 11, 4, 4, 0, 6, 8, 9};
  std::vector<std::int32_t> targets = {5, 1, 10, 0, 7, 7, 2, 3, 11, 4, 4, 0, 6, 8, 9, 1};
  targets[3] = targets[12] = kNoTarget;
  auto whole = BasicModel<double>::create(config, {.batch = 2, .length = kLength}).value();
  Tensors<double> values(whole.table().specs), expected(whole.table().specs);
  for (std::size_t i = 0; i < values.tensors.size(); ++i)
    values.tensors[i] = some_values(values.tensors[i].size(), static_cast<unsigned>(i + 1));
  const auto parameters = values.constant();
  const double loss = whole.forward_backward(parameters, expected.pointers(), tokens, targets).value();

  play_members<double>(size, [&, size = size, keep = keep](TensorGroup<double>& group) {
    const BatchShape shape{2, kLength / size};
    auto model = BasicModel<double>::create(config, shape, keep, {.context = &group}).value();
    std::vector<std::int32_t> own_tokens, own_targets;
    std::size_t learned = 0;
    for (const std::size_t start : {std::size_t{0}, kLength}) {
      for (const std::size_t position : positions_of_member(kLength, size, group.index())) {
        own_tokens.push_back(tokens[start + position]);
        own_targets.push_back(targets[start + position]);
        learned += own_targets.back() != kNoTarget ? 1 : 0;
      }
    }
    const double weight = static_cast<double>(learned) / 14;
    Tensors<double> gradients(model.table().specs);
    const StepHooks hooks{.loss_scale = weight};

    std::vector<double> found = {
        weight *
        model.forward_backward(parameters, gradients.pointers(), own_tokens, own_targets, hooks).value()};

    // All that the members do together, before any of them gives up.
    EXPECT_TRUE(group.sum(found));
    for (auto& gradient : gradients.tensors) EXPECT_TRUE(group.sum(gradient));
    EXPECT_NEAR(found[0], loss, 1e-13 * loss);
    for (std::size_t i = 0; i < gradients.tensors.size(); ++i) {
      const auto& gradient = gradients.tensors[i];
      for (std::size_t e = 0; e < gradient.size(); ++e) {
        ASSERT_NEAR(gradient[e], expected.tensors[i][e], 1e-12 + 1e-10 * std::abs(expected.tensors[i][e]))
            << model.table().specs[i].name << " element " << e;
      }
    }
  });
}

std::string name_of_context(
    const testing::TestParamInfo<std::tuple<ContextFamily, std::size_t, Keep>>& info) {
  const auto& [family, size, keep] = info.param;
  return family.name + std::to_string(size) + (keep == Keep::inputs ? "Recomputed" : "");
}

INSTANTIATE_TEST_SUITE_P(Members, ContextGradient,
                         testing::Combine(testing::ValuesIn(kContextFamilies), testing::Values(1, 2, 4),
                                          testing::Values(Keep::activations, Keep::inputs)),
                         name_of_context);

}  // namespace
}  // namespace troupe::apps::gpt
