#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/actors/session/c/company.hpp"

// Layers of experts in C. What they compute is a matter of the session's tests
// (tests/simulation/expert_layers_test.cpp).

namespace troupe::actors {
namespace {

constexpr std::size_t kExpertsOfC = 4, kTokensOfC = 3, kChoicesOfC = 2, kWidthOfC = 2;

void spread_experts(CRank& self) {
  const troupe_expert_layer none{};
  troupe_expert_layer layer{};
  layer.experts = kExpertsOfC;
  layer.choices = kChoicesOfC;
  layer.tokens = kTokensOfC;
  layer.bias_rate = 0.5;
  self.set("expert-parallel", "2");
  self.ok(troupe_options_add_experts(self.options, &none, &self.error));
  self.ok(troupe_options_add_experts(self.options, &layer, &self.error));
  self.add(self.rank == 0 ? "expert.0" : "expert.1", 1, TROUPE_EXPERT);
  self.add("router", 1);
}

TEST(LayersOfExpertsInC, BringRowsToTheirExpertsAndBack) {
  run(2, spread_experts, [](CRank& self) {
    troupe_experts* layer = nullptr;
    const troupe_routing* to = nullptr;
    self.ok(troupe_experts_of(self.session, 1, &layer, &self.error));
    self.begin_lane();
    // All tokens of both ranks choose expert 3 first, then 0.
    const std::vector<float> logits{1, -9, -9, 2, 1, -9, -9, 2, 1, -9, -9, 2};
    self.ok(troupe_experts_route(layer, logits.data(), kTokensOfC, &to, &self.error));

    ASSERT_EQ(to->slots, kTokensOfC * kChoicesOfC);
    ASSERT_EQ(to->received, 2 * kTokensOfC) << "one expert that is chosen is here";
    for (std::size_t token = 0; token < kTokensOfC; ++token) {
      EXPECT_EQ(to->experts[2 * token], 3);
      EXPECT_EQ(to->experts[2 * token + 1], 0);
      EXPECT_FLOAT_EQ(to->weights[2 * token] + to->weights[2 * token + 1], 1);
      EXPECT_EQ(to->slot_of_choice[2 * token + 1], static_cast<std::int64_t>(token))
          << "those of expert 0 first";
      EXPECT_EQ(to->choice_of_slot[token], static_cast<std::int64_t>(2 * token + 1));
    }
    std::vector<float> slots(to->slots * kWidthOfC), rows(to->received * kWidthOfC);
    for (std::size_t i = 0; i < slots.size(); ++i)
      slots[i] = static_cast<float>(100 * self.rank) + static_cast<float>(i);
    const std::size_t row = kWidthOfC * sizeof(float);
    self.ok(troupe_experts_dispatch(layer, to, slots.data(), rows.data(), row, &self.error));
    for (std::size_t product = 0; product < to->product_count; ++product) {
      const auto& part = to->products[product];
      if (part.count == 0) continue;
      EXPECT_EQ(part.expert, self.rank == 0 ? 0 : 1) << "by their place among those here";
      EXPECT_EQ(part.count, static_cast<std::int64_t>(kTokensOfC));
      EXPECT_EQ(part.first, static_cast<std::int64_t>(kTokensOfC) * part.source);
      // Slots of expert 3 come after those of expert 0.
      const float first = static_cast<float>(100 * part.source) + (self.rank == 0 ? 0.0F : 6.0F);
      EXPECT_EQ(rows[static_cast<std::size_t>(part.first) * kWidthOfC], first);
    }
    for (float& value : rows) value = -value;
    self.ok(troupe_experts_combine(layer, to, rows.data(), slots.data(), row, &self.error));
    for (std::size_t i = 0; i < slots.size(); ++i)
      EXPECT_EQ(slots[i], -(static_cast<float>(100 * self.rank) + static_cast<float>(i)));
    const std::vector<float> d_weights(kTokensOfC * kChoicesOfC, 1);
    std::vector<float> d_logits(logits.size());
    self.ok(
        troupe_experts_backward(layer, to, logits.data(), d_weights.data(), d_logits.data(), &self.error));
    troupe_routing_free(layer, to);
    self.refuses(troupe_experts_combine(layer, to, rows.data(), slots.data(), row, &self.error), "was freed");

    for (int source = 0; source < 2; ++source) {
      void* gradient = nullptr;
      self.ok(troupe_before_use(self.session, 0, &self.error));
      self.ok(troupe_gradient_memory_of_source(self.session, 0, source, &gradient, nullptr, &self.error));
      EXPECT_NE(gradient, nullptr);
    }
    self.refuses(troupe_gradient_memory_of_source(self.session, 0, 2, nullptr, nullptr, &self.error),
                 "2 sources");
    self.gradient(1);
    self.end_step();
    const float* biases = nullptr;
    const std::int64_t *chosen = nullptr, *dropped = nullptr;
    self.ok(troupe_experts_state(layer, &biases, &chosen, &dropped, &self.error));
    EXPECT_THAT(std::vector(biases, biases + kExpertsOfC), testing::ElementsAre(-0.5F, 0.5F, 0.5F, -0.5F));
    EXPECT_THAT(std::vector(chosen, chosen + kExpertsOfC), testing::ElementsAre(6, 0, 0, 6));
    EXPECT_THAT(std::vector(dropped, dropped + kExpertsOfC), testing::Each(0));
  });
}

TEST(LayersOfExpertsInC, SayWhatCannotBe) {
  run(2, spread_experts, [](CRank& self) {
    troupe_experts* layer = nullptr;
    const troupe_routing* to = nullptr;
    void* gradient = nullptr;
    float values[64] = {};
    auto* const error = &self.error;
    self.refuses(troupe_experts_of(self.session, 0, &layer, error), "there is no layer 0 of experts");
    self.refuses(troupe_experts_of(self.session, 1, nullptr, error), "experts is NULL");
    self.refuses(troupe_experts_state(nullptr, nullptr, nullptr, nullptr, error),
                 "troupe_experts_of() finds");
    self.ok(troupe_experts_of(self.session, 1, &layer, error));
    self.begin_lane();
    self.refuses(troupe_experts_route(layer, nullptr, 1, &to, error), "logits is NULL");
    self.refuses(troupe_experts_route(layer, values, 1, nullptr, error), "routing is NULL");
    self.refuses(troupe_experts_route(layer, values, 4, &to, error), "up to 3 tokens");
    self.refuses(troupe_experts_route(layer, values, SIZE_MAX / 4, &to, error), "rows of");
    self.ok(troupe_experts_route(layer, values, kTokensOfC, &to, error));
    self.refuses(troupe_experts_dispatch(layer, nullptr, values, values, 8, error), "routing is NULL");
    self.refuses(troupe_experts_dispatch(layer, to, nullptr, values, 8, error), "slots is NULL");
    self.refuses(troupe_experts_dispatch(layer, to, values, values, 0, error), "give the bytes of a row");
    self.refuses(troupe_experts_combine(layer, to, values, values, 8, error), "cannot go back");
    self.refuses(troupe_experts_backward(layer, to, values, nullptr, values, error), "d_weights is NULL");
    float rows[64] = {};
    self.ok(troupe_experts_dispatch(layer, to, values, rows, 8, error));
    self.ok(troupe_experts_combine(layer, to, rows, values, 8, error));
    self.gradient(1);
    for (int source = 0; source < 2; ++source)
      self.ok(troupe_gradient_of_source(self.session, 0, source, &gradient, nullptr, error));
    self.end_step();
    troupe_routing_free(layer, nullptr);
    troupe_routing_free(nullptr, to);
  });
}

TEST(LayersOfExpertsInC, AreCheckedWhenTheyAreAdded) {
  troupe_error error{};
  troupe_options* const options = troupe_options_new();
  troupe_expert_layer layer{};
  layer.most_rows = -1;

  EXPECT_EQ(troupe_options_add_experts(nullptr, &layer, &error), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_add_experts(options, nullptr, &error), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_add_experts(options, &layer, &error), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error.message), testing::HasSubstr("-1 most rows"));
  layer = {.experts = 8, .choices = 3, .tokens = 5, .capacity_factor = 1.5, .most_rows = 7, .exchanges = 2};
  layer.after_choice = 1;
  EXPECT_EQ(troupe_options_add_experts(options, &layer, &error), TROUPE_OK);
  const auto& added = options->session.training.experts.back();
  EXPECT_EQ(added.experts, 8u);
  EXPECT_EQ(added.choices, 3u);
  EXPECT_EQ(added.tokens, 5u);
  EXPECT_EQ(added.capacity_factor, 1.5);
  EXPECT_EQ(added.most_rows, 7);
  EXPECT_EQ(added.exchanges, 2u);
  EXPECT_EQ(added.bias_rate, 0);
  EXPECT_FALSE(added.score_before_choice);
  troupe_options_free(options);
}

}  // namespace
}  // namespace troupe::actors
