#include "tests/apps_gpt/uncut_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "apps/gpt/model/initial_values.hpp"
#include "tests/apps_gpt/tensor/members.hpp"

namespace troupe::apps::gpt {
namespace {

/// A member's parameters and gradients, and how often it was told of each.
struct MemberOfModel {
  MemberOfModel(const UncutModel& model, const SharedTable& shared) {
    const RandomValues initial(3);
    for (std::size_t p = 0; p < model.table().specs.size(); ++p) {
      values.emplace_back(model.table().specs[p].elements());
      const auto count = static_cast<std::int64_t>(values.back().size());
      EXPECT_TRUE(read_part(initial, shared, p, {0, count}, values.back()));
      gradients.emplace_back(values.back().size());
    }
    for (auto& one : values) readable.push_back(reinterpret_cast<const std::byte*>(one.data()));
    for (auto& one : gradients) places.push_back(one.data());
  }

  void zero() {
    for (auto& one : gradients) std::fill(one.begin(), one.end(), 0.0F);
  }

  std::vector<std::vector<float>> values, gradients;
  std::vector<const std::byte*> readable;
  std::vector<float*> places;
};

// Covers finish-12.
TEST(TensorModel, AddsEachMicrobatchToGradientsOnceIncludingLateSums) {
  ModelConfig config{.layers = 1, .heads = 4, .width = 8, .feed_forward = 8, .context = 4, .vocabulary = 8};
  config.query_key_norm = true;
  const std::vector<std::int32_t> tokens = {1, 5, 7, 0}, targets = {5, 7, 0, 2};
  play_members<float>(2, [&](TensorGroup<float>& group) {
    const TensorShare share{2, group.index(), true};
    const auto model = create_host_model(config, {1, 4}, Keep::activations, share, &group).value();
    MemberOfModel member(*model, SharedTable(config, share));
    const auto pass = [&](bool last) {
      StepHooks hooks;
      hooks.last_microbatch = last;
      ASSERT_TRUE(model->forward_backward(member.readable, member.places, tokens, targets, hooks));
    };
    pass(true);
    const auto once = member.gradients;
    member.zero();

    pass(false);
    for (std::size_t p = 0; p < once.size(); ++p) {
      const auto& gradient = member.gradients[p];
      EXPECT_EQ(gradient, once[p]) << model->table().specs[p].name;
    }
    pass(true);
    for (std::size_t p = 0; p < once.size(); ++p) {
      for (std::size_t e = 0; e < once[p].size(); ++e)
        EXPECT_NEAR(member.gradients[p][e], 2 * once[p][e], 1e-7) << model->table().specs[p].name;
    }
    member.zero();
    pass(true);
    EXPECT_EQ(member.gradients, once) << "a lane begins with nothing of the one before";
  });
}

}  // namespace
}  // namespace troupe::apps::gpt
