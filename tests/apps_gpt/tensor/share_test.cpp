#include "apps/gpt/model/share.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "apps/gpt/rank/tensor_rank.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "apps/gpt/stage/models.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/apps_gpt/uncut_model.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ModelConfig model_of_shares() {
  ModelConfig config{.layers = 1, .heads = 4, .width = 8, .feed_forward = 12, .context = 6, .vocabulary = 20};
  config.query_key_norm = true;
  config.attention_output_bias = true;
  config.query_key_value_bias = true;
  return config;
}

/// A registered part, as text: its shape, the whole's and where it begins.
std::map<std::string, std::string> declared(const TensorShare& share) {
  const SharedTable table(model_of_shares(), share);
  std::vector<core::ParameterSpec> specs;
  for (const ParameterSpec& spec : table.part().specs) {
    specs.push_back({spec.name});
    for (const std::size_t extent : spec.shape)
      specs.back().shape.push_back(static_cast<std::int64_t>(extent));
  }
  table.declare(specs);
  std::map<std::string, std::string> found;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto text = testing::PrintToString(specs[i].shape);
    if (!specs[i].global_shape.empty()) {
      text += " of " + testing::PrintToString(specs[i].global_shape) + " at " +
              testing::PrintToString(specs[i].offset);
    }
    found[specs[i].name] = text;
  }
  return found;
}

TEST(TensorShare, CutsHeadsFeedForwardAndVocabulary) {
  const std::string layer = "model.layers.0.";
  const std::map<std::string, std::string> expected = {
      {"model.embed_tokens.weight", "{ 10, 8 } of { 20, 8 } at { 10, 0 }"},
      {layer + "input_layernorm.weight", "{ 8 }"},
      {layer + "self_attn.q_proj.weight", "{ 4, 8 } of { 8, 8 } at { 4, 0 }"},
      {layer + "self_attn.q_proj.bias", "{ 4 } of { 8 } at { 4 }"},
      {layer + "self_attn.k_proj.weight", "{ 4, 8 } of { 8, 8 } at { 4, 0 }"},
      {layer + "self_attn.k_proj.bias", "{ 4 } of { 8 } at { 4 }"},
      {layer + "self_attn.v_proj.weight", "{ 4, 8 } of { 8, 8 } at { 4, 0 }"},
      {layer + "self_attn.v_proj.bias", "{ 4 } of { 8 } at { 4 }"},
      {layer + "self_attn.q_norm.weight", "{ 2 }"},
      {layer + "self_attn.k_norm.weight", "{ 2 }"},
      {layer + "self_attn.o_proj.weight", "{ 8, 4 } of { 8, 8 } at { 0, 4 }"},
      {layer + "self_attn.o_proj.bias", "{ 8 }"},
      {layer + "post_attention_layernorm.weight", "{ 8 }"},
      {layer + "mlp.gate_proj.weight", "{ 6, 8 } of { 12, 8 } at { 6, 0 }"},
      {layer + "mlp.up_proj.weight", "{ 6, 8 } of { 12, 8 } at { 6, 0 }"},
      {layer + "mlp.down_proj.weight", "{ 8, 6 } of { 8, 12 } at { 0, 6 }"},
      {"model.norm.weight", "{ 8 }"}};

  EXPECT_EQ(declared({2, 1, false}), expected);
}

TEST(TensorShare, ReadsItsPartOfFirstValuesInAnyStretches) {
  const RandomValues values(7);
  for (const std::size_t size : {1, 2, 4}) {
    for (std::size_t index = 0; index < size; ++index) {
      const SharedTable table(model_of_shares(), {size, index});
      for (std::size_t p = 0; p < table.size(); ++p) {
        const SharedParameter shared = table.at(p);
        std::vector<float> whole(shared.whole->elements()), part(shared.part->elements());
        ASSERT_TRUE(values.read(*shared.whole, whole));
        // Element by element, from the definition: rows of the part are rows, or pieces of rows, of the
        // whole.
        const std::size_t columns = shared.part->shape.back();
        const std::size_t whole_columns = shared.whole->shape.back();
        const std::size_t first_row =
            shared.axis == 0u && shared.part->shape.size() == 2 ? index * shared.part->shape[0] : 0;
        const std::size_t first_column = columns == whole_columns ? 0 : index * columns;
        for (std::size_t e = 0; e < part.size(); ++e)
          part[e] = whole[(first_row + e / columns) * whole_columns + first_column + e % columns];

        const auto count = static_cast<std::int64_t>(part.size());
        for (std::int64_t step : {std::int64_t{1}, std::int64_t{5}, count}) {
          for (std::int64_t start = 0; start < count; start += step) {
            const core::ElementRange range{start, std::min(start + step, count)};
            std::vector<float> read(static_cast<std::size_t>(range.size()));
            ASSERT_TRUE(read_part(values, table, p, range, read));
            ASSERT_EQ(read, std::vector<float>(part.begin() + range.start, part.begin() + range.end))
                << shared.whole->name << " from " << start << ", member " << index << " of " << size;
          }
        }
      }
    }
  }
}

TEST(TensorShare, SaysWhatDoesNotDivide) {
  const auto message = [](void (*change)(ModelConfig&), std::size_t size) {
    ModelConfig config = model_of_shares();
    change(config);
    return check_share(config, {size, 0}).error().message;
  };
  EXPECT_THAT(message([](ModelConfig& c) { c.heads = 2, c.width = 12; }, 4),
              AllOf(HasSubstr("heads"), HasSubstr("found 2 for 4 ranks")));
  EXPECT_THAT(message([](ModelConfig& c) { c.key_value_heads = 2; }, 4),
              AllOf(HasSubstr("key_value_heads"), HasSubstr("found 2 for 4 ranks")));
  EXPECT_THAT(message([](ModelConfig& c) { c.feed_forward = 14; }, 4),
              HasSubstr("feed_forward evenly, found 14"));
  EXPECT_THAT(message([](ModelConfig& c) { c.vocabulary = 257; }, 2),
              HasSubstr("vocabulary evenly, found 257"));
  EXPECT_THAT(message([](ModelConfig& c) { c.experts = {.count = 4, .feed_forward = 6}; }, 4),
              HasSubstr("the feed_forward of experts evenly, found 6 for 4 ranks"));
  EXPECT_THAT(message([](ModelConfig& c) { c.experts = {.count = 4, .shared_feed_forward = 6}; }, 4),
              HasSubstr("experts that all tokens share evenly, found 6 for 4 ranks"));
  EXPECT_THAT(check_share(model_of_shares(), {.size = 2, .slices = 4}).error().message,
              HasSubstr("heads evenly, found 4 for 8 slices"));
  EXPECT_THAT(check_share(model_of_shares(), {1, 0, true}).error().message,
              HasSubstr("sequence parallelism is between tensor-parallel ranks"));
}

TEST(TensorRank, AloneHasAllLayersAndUncuttableOnesAreRefused) {
  TrainerOptions options;
  options.model = model_of_shares();
  const auto alone = TensorRank::create(options, {0}, gpu::DeviceKind::cuda).value();
  EXPECT_FALSE(alone->is_shared());
  for (std::size_t p = 0; p < alone->table().size(); ++p) {
    const SharedParameter parameter = alone->table().at(p);
    EXPECT_EQ(parameter.part->shape, parameter.whole->shape) << parameter.whole->name;
    EXPECT_FALSE(parameter.axis) << parameter.whole->name;
  }
  options.session.training.tensor_parallel = 2;
  options.microbatch = {2, 6};
  options.tensor.slices = 4;
  EXPECT_THAT(TensorRank::create(options, {0}, gpu::DeviceKind::cuda).error().message,
              HasSubstr("on a GPU a rank computes one slice of each layer, found --tensor-slices 4 for 2"));
  options.tensor.slices = 0;
  options.model.feed_forward += 1;
  EXPECT_THAT(TensorRank::create(options, {0}, gpu::DeviceKind::cuda).error().message,
              HasSubstr("cuts the feed_forward evenly"));
  options.model.feed_forward -= 1;
  EXPECT_EQ(TensorRank::create(options, {5}, gpu::DeviceKind::host).value()->table().share().index, 1u);
}

TEST(TensorRank, TakesTheActivationMemoryForetold) {
  const ModelConfig config = model_of_shares();
  for (const std::size_t size : {2, 4}) {
    SliceGroup<float>::Room room(size);
    SliceGroup<float> group(room, 1);
    for (const bool sequence : {false, true}) {
      for (const Keep keep : {Keep::activations, Keep::inputs}) {
        const TensorShare share{size, 1, sequence, 4 / size};
        const auto model = create_host_model(config, {3, 5}, keep, share, &group).value();
        const StageShape shape{.batch = {3, 5}, .keep = keep, .share = share};
        EXPECT_EQ(stage_bytes(config, uncut(config), shape, {}, gpu::DeviceKind::host),
                  model->activation_bytes());
      }
    }
  }
}

TEST(TensorRank, WithSequenceParallelismKeepsLessOfTheResidualStream) {
  ModelConfig config = model_of_shares();
  config.layers = 8;
  SliceGroup<float>::Room room(4);
  SliceGroup<float> group(room, 0);
  const auto bytes = [&](bool sequence) {
    return create_host_model(config, {4, 6}, Keep::activations, {4, 0, sequence}, &group)
        .value()
        ->activation_bytes();
  };
  // Each block's input, the stream between attention and MLP, and both norms' outputs: three quarters of
  // 24 rows of 8 floats each; and those of the end, less what is gathered into and what sums are given out
  // to.
  EXPECT_GE(bytes(false) - bytes(true), 8 * 4 * 18 * 8 * sizeof(float));
}

}  // namespace
}  // namespace troupe::apps::gpt
