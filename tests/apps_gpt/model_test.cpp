#include "tests/apps_gpt/typed_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "core/errors.hpp"
#include "tests/apps_gpt/tensors.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Errc;

constexpr BatchShape kShape{.batch = 2, .length = 6};
const std::vector<std::int32_t> kTokens = {1, 5, 1, 10, 0, 7, 7, 2, 3, 4, 255, 30};
const std::vector<std::int32_t> kTargets = {5, 1, 10, 0, 7, 9, 2, 3, 4, 255, 30, 8};

enum class Kind { tied, untied, qwen };

std::ostream& operator<<(std::ostream& out, Kind kind) {
  if (kind == Kind::qwen) return out << "qwen";
  return out << (kind == Kind::tied ? "tied" : "untied");
}

// One model with its initial values, for both arrangements of the output layer, and with all that attention
// may have.
class ModelTest : public testing::TestWithParam<Kind> {
 protected:
  static ModelConfig config() {
    ModelConfig config = preset("tiny").value();
    config.tied_embeddings = GetParam() == Kind::tied;
    config.norm = GetParam() == Kind::untied ? Norm::layer : Norm::rms;
    if (GetParam() != Kind::qwen) return config;
    config.key_value_heads = 1;
    config.head_dimension = 6;
    config.query_key_value_bias = config.attention_output_bias = config.query_key_norm = true;
    return config;
  }

  const std::vector<ParameterSpec>& specs() const { return model_.table().specs; }

  Model model_ = Model::create(config(), kShape).value();
  Tensors<float> values_ = initial_parameters(specs(), 1);
  Tensors<float> gradients_{specs()};
};

INSTANTIATE_TEST_SUITE_P(Each, ModelTest, testing::Values(Kind::tied, Kind::untied, Kind::qwen),
                         testing::PrintToStringParamName());

TEST_P(ModelTest, StartsAtTheLossOfGuessing) {
  const float loss = model_.forward_loss(values_.constant(), kTokens, kTargets).value();

  EXPECT_NEAR(loss, std::log(256.0), 0.05);
}

TEST_P(ModelTest, GivesTheSameBitsEveryTime) {
  Tensors<float> again(specs());
  Model other = Model::create(config(), kShape).value();

  const float first =
      model_.forward_backward(values_.constant(), gradients_.pointers(), kTokens, kTargets).value();
  const float second =
      other.forward_backward(values_.constant(), again.pointers(), kTokens, kTargets).value();

  EXPECT_EQ(first, second);
  EXPECT_EQ(gradients_.tensors, again.tensors);
  EXPECT_EQ(first, model_.forward_loss(values_.constant(), kTokens, kTargets).value());
}

/// Whatever other passes left in the memory that its blocks share.
TEST_P(ModelTest, GivesTheSameBitsWhenActivationsAreRecomputed) {
  auto deep = config();
  deep.layers = 3;
  Model keeping = Model::create(deep, kShape).value();
  Model again = Model::create(deep, kShape, Keep::inputs).value();
  const auto& table = keeping.table().specs;
  Tensors<float> values = initial_parameters(table, 1);
  Tensors<float> expected(table), found(table);

  for (int step = 0; step < 2; ++step) {
    const float loss =
        keeping.forward_backward(values.constant(), expected.pointers(), kTokens, kTargets).value();

    ASSERT_TRUE(again.forward_loss(values.constant(), kTargets, kTokens));
    EXPECT_EQ(again.forward_backward(values.constant(), found.pointers(), kTokens, kTargets).value(), loss);
    EXPECT_EQ(found.tensors, expected.tensors);
  }
}

TEST_P(ModelTest, RequestsABlocksParametersBeforeRecomputingIt) {
  auto deep = config();
  deep.layers = 3;
  Model model = Model::create(deep, kShape, Keep::inputs).value();
  const auto& table = model.table();
  Tensors<float> values = initial_parameters(table.specs, 1);
  Tensors<float> gradients(table.specs);
  bool backward = false;
  std::vector<std::string> asked;  // of what each block reads first, in backward
  StepHooks hooks;
  hooks.begin_backward = [&] {
    backward = true;
    return core::Result<void>{};
  };
  hooks.before_use = [&](std::size_t parameter) {
    for (const auto& block : table.blocks) {
      if (backward && parameter == block.query) asked.push_back("forward of " + table.specs[parameter].name);
    }
    return core::Result<void>{};
  };
  hooks.gradient_ready = [&](std::size_t parameter) {
    for (const auto& block : table.blocks) {
      if (parameter == block.query) asked.push_back("gradient of " + table.specs[parameter].name);
    }
  };

  ASSERT_TRUE(model.forward_backward(values.constant(), gradients.pointers(), kTokens, kTargets, hooks));

  const auto name = [&](std::size_t layer) { return table.specs[table.blocks[layer].query].name; };
  EXPECT_EQ(asked, (std::vector<std::string>{
                       "forward of " + name(2), "gradient of " + name(2),  // backward's own read
                       "forward of " + name(1), "forward of " + name(1), "gradient of " + name(1),
                       "forward of " + name(0), "forward of " + name(0), "gradient of " + name(0)}));
}

TEST_P(ModelTest, AddsToTheGradientsItFinds) {
  ASSERT_TRUE(model_.forward_backward(values_.constant(), gradients_.pointers(), kTokens, kTargets));
  const Tensors<float> once = gradients_;

  ASSERT_TRUE(model_.forward_backward(values_.constant(), gradients_.pointers(), kTokens, kTargets));

  for (std::size_t i = 0; i < specs().size(); ++i) {
    for (std::size_t j = 0; j < once.tensors[i].size(); ++j) {
      ASSERT_NEAR(gradients_.tensors[i][j], 2 * once.tensors[i][j], 1e-6) << specs()[i].name << " " << j;
    }
  }
}

TEST_P(ModelTest, AnnouncesEachGradientOnceAndChangesItNoMore) {
  std::vector<std::vector<float>> announced(specs().size());
  std::vector<std::size_t> order;
  StepHooks hooks;
  hooks.gradient_ready = [&](std::size_t parameter) {
    order.push_back(parameter);
    announced[parameter] = gradients_.tensors[parameter];
  };

  ASSERT_TRUE(model_.forward_backward(values_.constant(), gradients_.pointers(), kTokens, kTargets, hooks));

  EXPECT_EQ(announced, gradients_.tensors);
  EXPECT_EQ(order.size(), specs().size());
  EXPECT_EQ(order.back(), model_.table().embedding);
  EXPECT_EQ(order.front(), config().tied_embeddings ? model_.table().final_norm.weight : model_.table().head);
}

TEST_P(ModelTest, AnnouncesGradientsLayerByLayerFromTheLast) {
  std::vector<std::string> names;
  StepHooks hooks;
  hooks.gradient_ready = [&](std::size_t parameter) { names.push_back(specs()[parameter].name); };

  ASSERT_TRUE(model_.forward_backward(values_.constant(), gradients_.pointers(), kTokens, kTargets, hooks));

  const auto last_of = [&](const std::string& prefix) {
    const auto found = std::find_if(names.rbegin(), names.rend(),
                                    [&](const std::string& name) { return name.starts_with(prefix); });
    return names.rend() - found;
  };
  const auto first_of = [&](const std::string& prefix) {
    const auto found = std::find_if(names.begin(), names.end(),
                                    [&](const std::string& name) { return name.starts_with(prefix); });
    return found - names.begin();
  };
  EXPECT_LT(last_of("model.norm"), first_of("model.layers.1.") + 1);
  EXPECT_LT(last_of("model.layers.1."), first_of("model.layers.0.") + 1);
}

// Fully sharded parameters behave so: only the one or two just asked for are there, all others are NaN.
TEST_P(ModelTest, ReadsOnlyParametersItJustAskedFor) {
  const float expected =
      model_.forward_backward(values_.constant(), gradients_.pointers(), kTokens, kTargets).value();
  Tensors<float> present(specs()), again(specs());
  const auto clear = [&](std::size_t parameter) {
    std::fill(present.tensors[parameter].begin(), present.tensors[parameter].end(),
              std::numeric_limits<float>::quiet_NaN());
  };
  for (std::size_t i = 0; i < specs().size(); ++i) clear(i);
  std::deque<std::size_t> held;
  StepHooks hooks;
  hooks.before_use = [&](std::size_t parameter) -> core::Result<void> {
    held.push_back(parameter);
    while (held.size() > 2) {
      clear(held.front());
      held.pop_front();
    }
    present.tensors[parameter] = values_.tensors[parameter];
    return {};
  };

  const float loss =
      model_.forward_backward(present.constant(), again.pointers(), kTokens, kTargets, hooks).value();

  EXPECT_EQ(loss, expected);
  EXPECT_EQ(again.tensors, gradients_.tensors);
}

TEST_P(ModelTest, FirstUsesFollowTheTable) {
  std::vector<std::size_t> first_uses;
  StepHooks hooks;
  hooks.before_use = [&](std::size_t parameter) -> core::Result<void> {
    if (std::find(first_uses.begin(), first_uses.end(), parameter) == first_uses.end()) {
      first_uses.push_back(parameter);
    }
    return {};
  };

  ASSERT_TRUE(model_.forward_loss(values_.constant(), kTokens, kTargets, hooks));

  EXPECT_EQ(first_uses.size(), specs().size());
  EXPECT_TRUE(std::is_sorted(first_uses.begin(), first_uses.end()));
}

TEST_P(ModelTest, EndsWithAHooksErrorInEitherDirection) {
  for (int allowed = 0; allowed < 90; ++allowed) {
    int calls = 0;
    StepHooks hooks;
    hooks.before_use = [&](std::size_t) -> core::Result<void> {
      if (calls++ == allowed) return core::fail(Errc::peer_lost, "rank 3 is gone");
      return {};
    };

    const auto result =
        model_.forward_backward(values_.constant(), gradients_.pointers(), kTokens, kTargets, hooks);

    if (calls <= allowed) {
      EXPECT_GT(allowed, static_cast<int>(specs().size()));
      return;
    }
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "rank 3 is gone");
    EXPECT_EQ(calls, allowed + 1);
  }
}

TEST_P(ModelTest, LogitsOfAPrefixPredictAsTheLossDoes) {
  const std::vector<std::int32_t> tokens(kTokens.begin(), kTokens.begin() + 3);
  Model three = Model::create(config(), {.batch = 1, .length = 3}).value();
  const std::vector<std::int32_t> targets = {5, 1, 77};
  const std::vector<std::int32_t> shorter = {5, 1};
  Model two = Model::create(config(), {.batch = 1, .length = 2}).value();
  const float all = three.forward_loss(values_.constant(), tokens, targets).value();
  const float before = two.forward_loss(values_.constant(), std::span(tokens).first(2), shorter).value();

  const auto logits = model_.logits(values_.constant(), tokens).value();

  ASSERT_EQ(logits.size(), 256U);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(std::log(sum) - logits[77], 3 * all - 2 * before, 1e-4);
}

TEST_P(ModelTest, ATokenOutsideTheVocabularyIsAnError) {
  auto tokens = kTokens;
  tokens[3] = 256;

  const auto result = model_.forward_loss(values_.constant(), tokens, kTargets);

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Errc::invalid_argument);
  EXPECT_THAT(result.error().message, testing::HasSubstr("token 256"));
}

TEST(Model, TooLargeForMemoryIsAnErrorBeforeAllocation) {
  ModelConfig config = preset("tiny").value();
  config.context = 1 << 16;
  config.heads = 8;

  const auto model = Model::create(config, {.batch = 200, .length = 1 << 16});

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, Errc::out_of_memory);
  EXPECT_THAT(model.error().message, testing::HasSubstr("use a smaller microbatch"));
}

TEST(Model, OfTheLargestSizesCountsBytesWithoutWrapping) {
  const ModelConfig config{.layers = 1 << 10,
                           .heads = 1 << 10,
                           .width = 1 << 16,
                           .feed_forward = 1 << 18,
                           .context = 1 << 16,
                           .vocabulary = 1 << 20};

  const auto model = Model::create(config, {.batch = 256, .length = 1 << 16});

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, Errc::out_of_memory);
}

TEST(Model, RefusesShapesItsContextDoesNotHold) {
  const ModelConfig config = preset("tiny").value();

  EXPECT_FALSE(Model::create(config, {.batch = 0, .length = 4}));
  EXPECT_FALSE(Model::create(config, {.batch = 1, .length = 0}));
  EXPECT_FALSE(Model::create(config, {.batch = 1, .length = 17}));
  EXPECT_TRUE(Model::create(config, {.batch = 1, .length = 16}));
}

}  // namespace
}  // namespace troupe::apps::gpt
