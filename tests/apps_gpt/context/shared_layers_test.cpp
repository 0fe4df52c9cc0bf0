#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>
#include <vector>

#include "apps/gpt/model/sequences.hpp"
#include "apps/gpt/model/share.hpp"
#include "tests/apps_gpt/gradient_check.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr std::size_t kTokensOfAll = 8;

/// Two members share each layer, and two each sequence: what a part's gradients add up to over those that
/// share the sequences is its part of one rank's.
class ContextOfSharedLayers : public testing::TestWithParam<std::tuple<bool, Keep>> {};

void take_part(const PartLayout& layout, const std::vector<double>& whole, std::vector<double>& part) {
  for (std::int64_t run = 0; run < layout.runs; ++run)
    std::copy_n(whole.begin() + layout.first + run * layout.stride, layout.run,
                part.begin() + run * layout.run);
}

TEST_P(ContextOfSharedLayers, HasGradientsThatAddUpToOneRanks) {
  const auto [sequence, keep] = GetParam();
  ModelConfig config{.layers = 2, .heads = 4, .width = 8, .feed_forward = 12, .context = 9, .vocabulary = 12};
  config.key_value_heads = 2;
  config.query_key_norm = true;
  config.attention_output_bias = true;
  const std::vector<std::int32_t> tokens = {1, 5, 1, 10, 0, 7, 7, 2, 3, 11, 4, 4, 0, 6, 8, 9};
  const std::vector<std::int32_t> targets = {5, 1, 10, 0, 7, 7, 2, 3, 11, 4, 4, 0, 6, 8, 9, 1};
  auto whole = BasicModel<double>::create(config, {.batch = 2, .length = kTokensOfAll}).value();
  Tensors<double> values(whole.table().specs), expected(whole.table().specs);
  for (std::size_t i = 0; i < values.tensors.size(); ++i)
    values.tensors[i] = some_values(values.tensors[i].size(), static_cast<unsigned>(i + 1));
  const double loss = whole.forward_backward(values.constant(), expected.pointers(), tokens, targets).value();

  SliceGroup<double>::Room layer_rooms[] = {SliceGroup<double>::Room(2), SliceGroup<double>::Room(2)};
  SliceGroup<double>::Room context_rooms[] = {SliceGroup<double>::Room(2), SliceGroup<double>::Room(2)};
  const auto play = [&, sequence = sequence, keep = keep](std::size_t part, std::size_t piece) {
    SliceGroup<double> layers(layer_rooms[piece], part), context(context_rooms[part], piece);
    const SharedTable table(config, {2, part, sequence});
    auto model = BasicModel<double>::create(config_of_share(config, 2), {2, kTokensOfAll / 2}, keep,
                                            {&layers, sequence, &context})
                     .value();
    std::vector<std::int32_t> own_tokens, own_targets;
    for (const std::size_t start : {std::size_t{0}, kTokensOfAll}) {
      for (const std::size_t position : positions_of_member(kTokensOfAll, 2, piece)) {
        own_tokens.push_back(tokens[start + position]);
        own_targets.push_back(targets[start + position]);
      }
    }
    Tensors<double> own(table.part().specs), gradients(table.part().specs);
    for (std::size_t i = 0; i < table.size(); ++i)
      take_part(table.layout(i, part), values.tensors[i], own.tensors[i]);
    const StepHooks hooks{.loss_scale = 0.5};

    std::vector<double> found{
        0.5 *
        model.forward_backward(own.constant(), gradients.pointers(), own_tokens, own_targets, hooks).value()};

    // All that the members do together, before any of them gives up.
    EXPECT_TRUE(context.sum(found));
    for (std::size_t i = 0; i < table.size(); ++i) EXPECT_TRUE(context.sum(gradients.tensors[i]));
    EXPECT_NEAR(found[0], loss, 1e-13 * loss);
    for (std::size_t i = 0; i < table.size(); ++i) {
      const auto& gradient = gradients.tensors[i];
      std::vector<double> of_part(gradient.size());
      take_part(table.layout(i, part), expected.tensors[i], of_part);
      for (std::size_t e = 0; e < gradient.size(); ++e) {
        ASSERT_NEAR(gradient[e], of_part[e], 1e-12 + 1e-10 * std::abs(of_part[e]))
            << table.part().specs[i].name << " element " << e << " of part " << part << ", piece " << piece;
      }
    }
  };
  std::vector<std::jthread> members;
  for (std::size_t member = 0; member < 4; ++member)
    members.emplace_back([&, member] { play(member % 2, member / 2); });
}

INSTANTIATE_TEST_SUITE_P(Ways, ContextOfSharedLayers,
                         testing::Combine(testing::Bool(), testing::Values(Keep::activations, Keep::inputs)));

}  // namespace
}  // namespace troupe::apps::gpt
