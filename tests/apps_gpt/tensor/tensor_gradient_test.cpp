#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/model/share.hpp"
#include "tests/apps_gpt/gradient_check.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

const std::vector<std::int32_t> kSharedTokens = {1, 5, 1, 10, 0, 7, 7, 2, 3, 11};
const std::vector<std::int32_t> kSharedTargets = {5, 1, kNoTarget, 0, 9, 7, 2, 3, 11, 8};

ModelConfig model_to_share() {
  return {.layers = 2, .heads = 4, .width = 8, .feed_forward = 12, .context = 6, .vocabulary = 12};
}

struct SharedFamily {
  const char* name;
  void (*shape)(ModelConfig& config);

  friend std::ostream& operator<<(std::ostream& out, const SharedFamily& of) { return out << of.name; }
};

const SharedFamily kSharedFamilies[] = {
    {"Plain", [](ModelConfig&) {}},
    {"LayerNormGelu",
     [](ModelConfig& c) {
       c.norm = Norm::layer;
       c.activation = Activation::gelu;
     }},
    {"Untied", [](ModelConfig& c) { c.tied_embeddings = false; }},
    {"GroupedKeysWithNorms",
     [](ModelConfig& c) {
       c.heads = 8;
       c.key_value_heads = 4;
       c.head_dimension = 4;
       c.query_key_norm = true;
     }},
    {"Biases",
     [](ModelConfig& c) {
       c.query_key_value_bias = true;
       c.attention_output_bias = true;
     }},
    {"Experts",
     [](ModelConfig& c) {
       c.experts = {.count = 4, .choices = 2, .feed_forward = 8, .balance = 0.1, .z_loss = 0.01};
     }},
    {"SharedExperts",
     [](ModelConfig& c) {
       c.experts = {.count = 3,
                    .feed_forward = 4,
                    .shared_feed_forward = 12,
                    .shared_gate = true,
                    .score_before_choice = true,
                    .capacity_factor = 1.0,
                    .dense_layers = {1}};
     }},
};

/// The members, and the slices of each.
using SharedCase = std::tuple<SharedFamily, std::size_t, std::size_t, bool, Keep>;

class TensorGradient : public testing::TestWithParam<SharedCase> {};

void copy_part(const PartLayout& layout, const std::vector<double>& whole, std::vector<double>& part) {
  for (std::int64_t run = 0; run < layout.runs; ++run) {
    std::copy_n(whole.begin() + layout.first + run * layout.stride, layout.run,
                part.begin() + run * layout.run);
  }
}

/// What one rank computes.
struct Whole {
  explicit Whole(const ModelConfig& config)
      : model(BasicModel<double>::create(config, {.batch = 2, .length = 5}).value()),
        values(model.table().specs),
        gradients(model.table().specs) {
    for (std::size_t i = 0; i < values.tensors.size(); ++i)
      values.tensors[i] = some_values(values.tensors[i].size(), static_cast<unsigned>(i + 1));
    loss = model.forward_backward(values.constant(), gradients.pointers(), kSharedTokens, kSharedTargets)
               .value();
    const auto found = model.logits(values.constant(), std::span(kSharedTokens).first(3)).value();
    logits.assign(found.begin(), found.end());
  }

  BasicModel<double> model;
  Tensors<double> values, gradients;
  double loss = 0;
  std::vector<double> logits;
};

/// Each part of a gradient is that of one rank that computes whole layers.
// Covers reduce-9, finish-6, finish-8, finish-18.
TEST_P(TensorGradient, OfEveryParameterIsThatOfOneRank) {
  const auto& [family, size, slices, sequence, keep] = GetParam();
  ModelConfig config = model_to_share();
  family.shape(config);
  Whole whole(config);

  play_members<double>(size, [&, size = size, slices = slices, sequence = sequence,
                              keep = keep](TensorGroup<double>& group) {
    const TensorShare share{size, group.index(), sequence, slices};
    ASSERT_TRUE(check_share(config, share));
    const SharedTable table(config, share);
    auto model = BasicModel<double>::create(config_of_share(config, size), {.batch = 2, .length = 5}, keep,
                                            {size > 1 ? &group : nullptr, sequence, nullptr, slices})
                     .value();
    Tensors<double> values(table.part().specs), gradients(table.part().specs);
    for (std::size_t i = 0; i < table.size(); ++i)
      copy_part(table.layout(i, group.index()), whole.values.tensors[i], values.tensors[i]);

    const double loss =
        model.forward_backward(values.constant(), gradients.pointers(), kSharedTokens, kSharedTargets)
            .value();
    const auto logits = model.logits(values.constant(), std::span(kSharedTokens).first(3)).value();

    EXPECT_NEAR(loss, whole.loss, 1e-13 * whole.loss);
    ASSERT_EQ(logits.size(), whole.logits.size());
    for (std::size_t v = 0; v < logits.size(); ++v) EXPECT_NEAR(logits[v], whole.logits[v], 1e-11);
    for (std::size_t i = 0; i < table.size(); ++i) {
      const auto& found = gradients.tensors[i];
      std::vector<double> expected(found.size());
      copy_part(table.layout(i, group.index()), whole.gradients.tensors[i], expected);
      for (std::size_t e = 0; e < found.size(); ++e) {
        ASSERT_NEAR(found[e], expected[e], 1e-12 + 1e-10 * std::abs(expected[e]))
            << table.part().specs[i].name << " element " << e << " of member " << group.index();
      }
    }
  });
}

std::string name_of_shared(const testing::TestParamInfo<SharedCase>& info) {
  const auto& [family, size, slices, sequence, keep] = info.param;
  return family.name + std::to_string(size) + "times" + std::to_string(slices) +
         (sequence ? "Sequence" : "") + (keep == Keep::inputs ? "Recomputed" : "");
}

std::vector<SharedCase> shared_cases() {
  std::vector<SharedCase> cases;
  for (const auto& family : kSharedFamilies) {
    ModelConfig config = model_to_share();
    family.shape(config);
    for (const auto& [size, slices] : {std::pair<std::size_t, std::size_t>{2, 1}, {4, 1}, {1, 4}, {2, 2}}) {
      for (const bool sequence : {false, true}) {
        if (sequence && size == 1) continue;
        cases.emplace_back(family, size, slices, sequence, Keep::activations);
        // Layers with experts are not computed again.
        if (config.experts.count == 0) cases.emplace_back(family, size, slices, sequence, Keep::inputs);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shares, TensorGradient, testing::ValuesIn(shared_cases()), name_of_shared);

}  // namespace
}  // namespace troupe::apps::gpt
