#include "core/models/weight_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "tests/core/models/example_configs.hpp"
#include "tests/core/models/tiny_model.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

std::set<std::string> names_of(const std::vector<PlannedTensor>& tensors) {
  std::set<std::string> names;
  for (const auto& tensor : tensors) names.insert(tensor.name);
  return names;
}

std::set<std::string> outputs_of(const WeightPlan& plan) {
  std::set<std::string> names;
  for (const auto& output : plan.outputs) names.insert(output.tensor.name);
  return names;
}

WeightMap mapped(const ModelConfig& model, const WeightOptions& options = {}) {
  auto map = map_weights(model, options);
  EXPECT_TRUE(map) << (map ? "" : map.error().message);
  return map ? std::move(*map) : WeightMap{};
}

/// The rows of one shard, as values of a tensor whose rows all have one element.
std::vector<std::int64_t> column(const Tensors& tensors, const std::string& file, const std::string& name) {
  return tensors.at({file, name});
}

TEST(WeightMap, NamesTheTensorsOfADenseModel) {
  const auto map = mapped(tiny("Qwen2.5-7B", {.layers = 1}));

  EXPECT_THAT(
      names_of(map.plan.inputs),
      ElementsAre("lm_head.weight", "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                  "model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.gate_proj.weight",
                  "model.layers.0.mlp.up_proj.weight", "model.layers.0.post_attention_layernorm.weight",
                  "model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.k_proj.weight",
                  "model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.q_proj.bias",
                  "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.v_proj.bias",
                  "model.layers.0.self_attn.v_proj.weight", "model.norm.weight"));
  EXPECT_THAT(
      outputs_of(map.plan),
      ElementsAre("decoder.final_layernorm.weight", "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
                  "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc2.weight",
                  "decoder.layers.0.self_attention.linear_proj.weight",
                  "decoder.layers.0.self_attention.linear_qkv.bias",
                  "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
                  "decoder.layers.0.self_attention.linear_qkv.weight", "embedding.word_embeddings.weight",
                  "output_layer.weight"));
}

TEST(WeightMap, NamesTheExpertsOfEveryArchitecture) {
  const Tiny one{.layers = 2};
  const auto qwen2 = mapped(tiny("Qwen2-57B-A14B", one));
  const auto qwen3 = mapped(tiny("Qwen3-30B-A3B", one));
  const auto mixtral = mapped(tiny("Mixtral-8x7B", one));
  const auto deepseek = mapped(tiny("DeepSeek-V3", one));

  EXPECT_THAT(names_of(qwen2.plan.inputs),
              IsSupersetOf({"model.layers.1.mlp.gate.weight", "model.layers.1.mlp.experts.3.gate_proj.weight",
                            "model.layers.1.mlp.shared_expert.up_proj.weight",
                            "model.layers.1.mlp.shared_expert_gate.weight"}));
  EXPECT_THAT(outputs_of(qwen2.plan),
              IsSupersetOf({"decoder.layers.1.mlp.router.weight", "decoder.layers.1.pre_mlp_layernorm.weight",
                            "decoder.layers.1.mlp.experts.linear_fc1.weight3",
                            "decoder.layers.1.mlp.shared_experts.linear_fc2.weight",
                            "decoder.layers.1.mlp.shared_experts.gate_weight"}));
  EXPECT_THAT(outputs_of(qwen3.plan), IsSupersetOf({"decoder.layers.0.self_attention.q_layernorm.weight",
                                                    "decoder.layers.0.self_attention.k_layernorm.weight"}));
  EXPECT_THAT(names_of(mixtral.plan.inputs),
              IsSupersetOf({"model.layers.0.block_sparse_moe.gate.weight",
                            "model.layers.0.block_sparse_moe.experts.2.w1.weight",
                            "model.layers.0.block_sparse_moe.experts.2.w2.weight",
                            "model.layers.0.block_sparse_moe.experts.2.w3.weight"}));
  EXPECT_THAT(
      names_of(deepseek.plan.inputs),
      IsSupersetOf({"model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.gate.e_score_correction_bias",
                    "model.layers.1.mlp.shared_experts.down_proj.weight",
                    "model.layers.0.self_attn.q_a_proj.weight",
                    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"}));
  EXPECT_THAT(
      outputs_of(deepseek.plan),
      IsSupersetOf({"decoder.layers.1.mlp.router.expert_bias", "decoder.layers.0.input_layernorm.weight",
                    "decoder.layers.0.self_attention.linear_q_down_proj.weight",
                    "decoder.layers.0.self_attention.linear_q_up_proj.layer_norm_weight",
                    "decoder.layers.0.self_attention.linear_kv_up_proj.weight",
                    "decoder.layers.0.mlp.linear_fc1.layer_norm_weight"}));
}

TEST(WeightMap, ProjectsQueriesAtOnceWithoutTheirRank) {
  auto model = tiny("DeepSeek-V3", {.layers = 1});
  model.transformer.q_lora_rank.reset();

  EXPECT_TRUE(
      outputs_of(mapped(model).plan).contains("decoder.layers.0.self_attention.linear_q_proj.weight"));
}

/// Row of query j of group g is g(r+2)d + jd + i; the group's key and value follow.
TEST(WeightMap, InterleavesQueriesKeysAndValuesByGroup) {
  const auto map =
      mapped(tiny("Qwen2.5-7B", {.layers = 1, .hidden = 4, .heads = 4, .groups = 2, .head_dim = 1}));

  const auto whole = execute(map.plan, numbered(map.plan.inputs));

  // Biases are numbered one after the other; only their order among each other counts.
  const auto inputs = numbered(map.plan.inputs);
  const auto q = inputs.at({"", "model.layers.0.self_attn.q_proj.bias"});
  const auto k = inputs.at({"", "model.layers.0.self_attn.k_proj.bias"});
  const auto v = inputs.at({"", "model.layers.0.self_attn.v_proj.bias"});
  EXPECT_THAT(whole.at({"", "decoder.layers.0.self_attention.linear_qkv.bias"}),
              ElementsAre(q[0], q[1], k[0], v[0], q[2], q[3], k[1], v[1]));
}

/// With fewer groups than ranks the rows of the same matrix are cut, and no key is copied.
// Covers ranks-26.
TEST(PlanShards, CutsMatrixRowsWhenGroupsAreFewerThanRanks) {
  const auto model = tiny(
      "Qwen2.5-7B", {.layers = 1, .hidden = 8, .heads = 4, .groups = 1, .head_dim = 2, .mesh = {.tp = 4}});
  const auto map = mapped(model);
  const auto plan = compose(map.plan, plan_shards(map, model.transformer).value()).value();

  const auto inputs = numbered(plan.inputs);
  const auto shards = execute(plan, inputs);

  const auto q = inputs.at({"", "model.layers.0.self_attn.q_proj.bias"});  // 8 rows, then 2 of k and 2 of v
  const auto k = inputs.at({"", "model.layers.0.self_attn.k_proj.bias"});
  const auto v = inputs.at({"", "model.layers.0.self_attn.v_proj.bias"});
  const std::string name = "decoder.layers.0.self_attention.linear_qkv.bias";
  EXPECT_THAT(column(shards, "pp000_tp00.safetensors", name), ElementsAre(q[0], q[1], q[2]));
  EXPECT_THAT(column(shards, "pp000_tp02.safetensors", name), ElementsAre(q[6], q[7], k[0]));
  EXPECT_THAT(column(shards, "pp000_tp03.safetensors", name), ElementsAre(k[1], v[0], v[1]));
}

TEST(PlanShards, GivesEveryRankItsOwnGateAndUp) {
  const auto model = tiny("Qwen2.5-7B", {.layers = 1, .ffn = 4, .mesh = {.tp = 2}});
  const auto map = mapped(model);

  const auto plan = plan_shards(map, model.transformer).value();

  for (const auto& output : plan.outputs) {
    if (output.tensor.file != "pp000_tp01.safetensors" ||
        output.tensor.name != "decoder.layers.0.mlp.linear_fc1.weight")
      continue;
    EXPECT_EQ(output.tensor.shape, (Shape{4, 8}));
    ASSERT_EQ(output.pieces.size(), 2U);
    EXPECT_EQ(output.pieces[0].from, (Box{{2, 0}, {2, 8}}));  // gate rows 2 and 3
    EXPECT_EQ(output.pieces[0].to, (Shape{0, 0}));
    EXPECT_EQ(output.pieces[1].from, (Box{{6, 0}, {2, 8}}));  // up rows 2 and 3
    EXPECT_EQ(output.pieces[1].to, (Shape{2, 0}));
    return;
  }
  FAIL() << "the second rank has no linear_fc1";
}

TEST(PlanShards, CountsLayersAndExpertsAnewInEveryPart) {
  const auto model =
      tiny("Qwen3-30B-A3B", {.layers = 8, .experts = 4, .mesh = {.ep = 2, .dp = 2, .pp = 2}, .vpp = 2});
  const auto map = mapped(model);

  const auto plan = compose(map.plan, plan_shards(map, model.transformer).value()).value();

  // Layer vpp * 4 + pp * 2 + local, expert ep * 2 + local.
  for (const auto& output : plan.outputs) {
    if (output.tensor.file != "pp001_ep001_etp00.safetensors" ||
        output.tensor.name != "model1.decoder.layers.1.mlp.experts.linear_fc2.weight0")
      continue;
    ASSERT_EQ(output.pieces.size(), 1U);
    EXPECT_EQ(plan.inputs[output.pieces[0].input].name, "model.layers.7.mlp.experts.2.down_proj.weight");
    return;
  }
  FAIL() << "the expert is not where it should be";
}

// Covers ranks-26.
TEST(PlanShards, CopiesATiedEmbeddingToTheLastStage) {
  auto model = tiny("Qwen2.5-7B", {.mesh = {.pp = 2}});
  model.builder.share_embeddings_and_output_weights = true;
  const auto map = mapped(model);
  const auto plan = compose(map.plan, plan_shards(map, model.transformer).value()).value();
  const auto inputs = numbered(plan.inputs);

  const auto shards = execute(plan, inputs);

  EXPECT_FALSE(names_of(plan.inputs).contains("lm_head.weight"));
  const auto words = inputs.at({"", "model.embed_tokens.weight"});
  EXPECT_EQ(shards.at({"pp000_tp00.safetensors", "embedding.word_embeddings.weight"}), words);
  EXPECT_EQ(shards.at({"pp001_tp00.safetensors", "output_layer.weight"}), words);
  EXPECT_EQ(execute(invert(plan), shards), inputs);
}

// Covers model-5, ranks-26.
TEST(PlanShards, PadsTheVocabularyWithZerosAndCutsThemAgain) {
  const auto model = tiny(
      "Qwen2.5-7B", {.hidden = 2, .heads = 2, .groups = 2, .head_dim = 1, .vocab = 5, .mesh = {.tp = 2}});
  const auto map = mapped(model, {.vocab_multiple = 4});
  const auto plan = compose(map.plan, plan_shards(map, model.transformer).value()).value();
  const auto inputs = numbered(plan.inputs);

  const auto shards = execute(plan, inputs);

  const auto words = inputs.at({"", "model.embed_tokens.weight"});
  EXPECT_THAT(shards.at({"pp000_tp01.safetensors", "embedding.word_embeddings.weight"}),
              ElementsAre(words[8], words[9], 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(execute(invert(plan), shards), inputs);
}

TEST(WeightMap, SwapsTheHalvesOfMiMosProjection) {
  const auto map =
      mapped(tiny("MiMo-7B", {.layers = 1, .hidden = 2, .heads = 2, .groups = 1, .head_dim = 1}));
  const auto inputs = numbered(map.plan.inputs);

  const auto whole = execute(map.plan, inputs);

  const auto theirs = inputs.at({"", "model.mtp_layers.0.input_proj.weight"});  // 2 rows of 4
  EXPECT_THAT(
      whole.at({"", "mtp.layers.0.eh_proj.weight"}),
      ElementsAre(theirs[2], theirs[3], theirs[0], theirs[1], theirs[6], theirs[7], theirs[4], theirs[5]));
  EXPECT_TRUE(whole.contains({"", "mtp.layers.0.transformer_layer.self_attention.linear_qkv.weight"}));
}

TEST(WeightMap, PutsGlmsExtraTokenLayerBehindTheLast) {
  const auto map = mapped(tiny("GLM-4.5-Air", {.layers = 2}));

  EXPECT_THAT(names_of(map.plan.inputs),
              IsSupersetOf({"model.layers.2.enorm.weight", "model.layers.2.hnorm.weight",
                            "model.layers.2.eh_proj.weight", "model.layers.2.shared_head.norm.weight",
                            "model.layers.2.mlp.experts.0.up_proj.weight"}));
  EXPECT_EQ(map.copies.at("model.layers.2.embed_tokens.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(map.copies.at("model.layers.2.shared_head.head.weight"), "lm_head.weight");
}

TEST(WeightMap, TakesBothSpellingsOfAVisionModel) {
  const auto model = tiny("Qwen2.5-VL-7B", {});
  const auto old = names_of(mapped(model).plan.inputs);
  const auto newer = names_of(mapped(model, {.nested_names = true}).plan.inputs);

  EXPECT_THAT(old, IsSupersetOf({"model.layers.0.input_layernorm.weight", "visual.blocks.1.attn.qkv.bias",
                                 "visual.merger.ln_q.weight", "visual.merger.mlp.2.bias",
                                 "visual.patch_embed.proj.weight"}));
  EXPECT_THAT(newer, IsSupersetOf({"model.language_model.layers.0.input_layernorm.weight",
                                   "model.visual.blocks.1.attn.qkv.bias"}));
}

/// [all q; all k; all v] becomes [q, k, v] of the first head, of the second, ...
TEST(WeightMap, InterleavesTheFusedQueriesOfVisionByHead) {
  const auto map = mapped(tiny("Qwen2.5-VL-7B", {}));
  const auto inputs = numbered(map.plan.inputs);

  const auto whole = execute(map.plan, inputs);

  const auto theirs = inputs.at({"", "visual.blocks.0.attn.qkv.bias"});  // 3 * 16: 4 heads of 4
  const auto ours = whole.at({"", "vision_model.decoder.layers.0.self_attention.linear_qkv.bias"});
  for (std::size_t head = 0; head < 4; ++head) {
    for (std::size_t part = 0; part < 3; ++part) {
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_EQ(ours[(3 * head + part) * 4 + i], theirs[part * 16 + head * 4 + i]);
    }
  }
}

TEST(WeightMap, GivesValueModelsAHeadOfOneRow) {
  auto model = tiny("Qwen3-8B", {});
  model.builder.value_head = true;

  const auto map = mapped(model, {.value_head = "reward_head.weight"});

  const auto& head = map.plan.outputs.back().tensor;
  EXPECT_EQ(head.name, "output_layer.weight");
  EXPECT_EQ(head.shape, (Shape{1, 8}));
  EXPECT_TRUE(names_of(map.plan.inputs).contains("reward_head.weight"));
}

TEST(WeightMap, SaysThatQwen3VlsTensorsAreUnknown) {
  const auto map = map_weights(convert(published("Qwen3-VL-8B")), {});

  EXPECT_EQ(map.error().code, Errc::unavailable);
}

TEST(PlanShards, NamesWhatDoesNotDivide) {
  const auto refused = [](const Tiny& sizes, const std::string& model) {
    const auto config = tiny(model, sizes);
    const auto plan = plan_shards(mapped(config), config.transformer);
    return plan ? "no error" : plan.error().message;
  };

  EXPECT_THAT(refused({.ffn = 5, .mesh = {.tp = 2}}, "Qwen2.5-7B"), HasSubstr("linear_fc1.weight': 5 rows"));
  EXPECT_THAT(refused({.experts = 3, .mesh = {.ep = 2}}, "Qwen3-30B-A3B"), HasSubstr("3 experts"));
  EXPECT_THAT(refused({.layers = 3, .mesh = {.pp = 2}}, "Qwen2.5-7B"), HasSubstr("3 layers"));
}

const std::vector<std::string>& all_models() {
  static const std::vector<std::string> kModels{"Qwen2.5-7B",      "Qwen3-8B",       "deepseek-coder-1.3b",
                                                "Mistral-7B-v0.3", "Qwen2-57B-A14B", "Qwen3-30B-A3B",
                                                "Mixtral-8x7B",    "DeepSeek-V3",    "MiMo-7B",
                                                "GLM-4.5-Air",     "Qwen2.5-VL-7B"};
  return kModels;
}

// Covers ranks-25.
RC_GTEST_PROP(WeightPlan, RoundTripsForEveryArchitectureSizeAndMesh, ()) {
  const auto& name = *rc::gen::elementOf(all_models());
  const auto tp = *rc::gen::element(1, 2, 4);
  const auto etp = *rc::gen::element(1, 2);
  const auto pp = *rc::gen::element(1, 2, 3);
  const auto vpp = *rc::gen::element(0, 2);
  const auto ep = *rc::gen::element(1, 2, 4);
  const auto head_dim = *rc::gen::element<std::int64_t>(2, 4);
  const auto groups = *rc::gen::element<std::int64_t>(1, 2, 4);
  const Tiny sizes{.layers = pp * std::max(1, vpp) * *rc::gen::element<std::int64_t>(1, 2),
                   .hidden = 4 * *rc::gen::inRange<std::int64_t>(1, 4),
                   .heads = 4 * *rc::gen::element<std::int64_t>(1, 2),
                   .groups = groups,
                   .head_dim = head_dim,
                   .ffn = 4 * *rc::gen::inRange<std::int64_t>(1, 4),
                   .experts = 4 * *rc::gen::element<std::int64_t>(1, 2),
                   .vocab = *rc::gen::inRange<std::int64_t>(1, 20),
                   .mesh = {.tp = tp, .ep = name == "Qwen2.5-7B" ? 1 : ep, .pp = pp, .etp = etp},
                   .vpp = vpp};
  const auto has_experts = tiny(name,
                                [&] {
                                  auto one = sizes;
                                  one.mesh = {};
                                  return one;
                                }())
                               .transformer.num_moe_experts.has_value();
  auto cut = sizes;
  if (!has_experts) cut.mesh.ep = 1;
  auto model = tiny(name, cut);
  model.builder.share_embeddings_and_output_weights = *rc::gen::arbitrary<bool>();
  model.transformer.moe_grouped_gemm = *rc::gen::arbitrary<bool>();
  const auto map = map_weights(model, {.vocab_multiple = *rc::gen::element<std::int64_t>(1, 3)}).value();
  const auto shards = plan_shards(map, model.transformer).value();
  const auto there = compose(map.plan, shards).value();
  const auto inputs = numbered(there.inputs);

  const auto cut_tensors = execute(there, inputs);

  RC_ASSERT(execute(invert(there), cut_tensors) == inputs);
  const auto back = compose(invert(shards), invert(map.plan));
  RC_ASSERT(back.has_value());
  RC_ASSERT(execute(*back, cut_tensors) == inputs);
}

TEST(WeightPlan, RefusesToComposeWhatDoesNotFit) {
  WeightPlan first;
  first.inputs = {{"", "a", {2}}};
  first.outputs = {{{"", "b", {2}}, {{0, Box::whole({2}), {0}}}}};
  WeightPlan second;
  second.inputs = {{"", "c", {2}}};

  EXPECT_THAT(compose(first, second).error().message, HasSubstr("'c'"));
  second.inputs = {{"", "b", {3}}};
  EXPECT_THAT(compose(first, second).error().message, HasSubstr("expected (3)"));
}

}  // namespace
}  // namespace troupe::core
