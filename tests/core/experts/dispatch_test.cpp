#include "core/experts/dispatch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/core/experts/some_logits.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kDropped = Dispatch::kDropped;

// Three tokens of two choices: 0 -> {2, 0}, 1 -> {2, 1}, 2 -> {2, 0}.
const std::vector<std::int32_t> kExperts = {2, 0, 2, 1, 2, 0};
const std::vector<float> kWeights = {0.5F, 0.25F, 0.75F, 0.125F, 0.5F, 0.5F};

TEST(Dispatch, SlotsLieByExpertAndThenByToken) {
  const auto found = dispatch<float>(4, kExperts, kWeights);

  EXPECT_THAT(found.first_slot, ElementsAre(0, 2, 3, 6, 6));
  EXPECT_THAT(found.choice_of_slot, ElementsAre(1, 5, 3, 0, 2, 4));
  EXPECT_THAT(found.slot_of_choice, ElementsAre(3, 0, 4, 2, 5, 1));
  EXPECT_THAT(found.dropped, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(found.count(2), 3);
  EXPECT_EQ(found.count(3), 0) << "an expert without a token";
}

TEST(Dispatch, DropsTheLastTokensOrTheLightest) {
  const auto by_position = dispatch<float>(4, kExperts, kWeights, 2, DropPolicy::position);
  EXPECT_THAT(by_position.choice_of_slot, ElementsAre(1, 5, 3, 0, 2));
  EXPECT_EQ(by_position.slot_of_choice[4], kDropped);
  EXPECT_THAT(by_position.dropped, ElementsAre(0, 0, 1, 0));

  const auto by_weight = dispatch<float>(4, kExperts, kWeights, 1, DropPolicy::probability);
  // Token 1 has the greatest weight for expert 2, token 2 for expert 0.
  EXPECT_THAT(by_weight.choice_of_slot, ElementsAre(5, 3, 2));
  EXPECT_THAT(by_weight.dropped, ElementsAre(1, 0, 2, 0));

  // Tokens 0 and 2 weigh expert 2 alike: the first stays, and slots are by token again.
  const auto two = dispatch<float>(4, kExperts, kWeights, 2, DropPolicy::probability);
  EXPECT_THAT(two.choice_of_slot, ElementsAre(1, 5, 3, 0, 2));
}

TEST(Dispatch, OfSomeTokensIsTheirsOfThatOfAll) {
  const auto all = dispatch<float>(4, kExperts, kWeights, 2, DropPolicy::position);

  // Tokens 1 and 2 of all three, and one that is not among them.
  const std::size_t tokens[] = {1, 2, 7};
  const std::int32_t experts[] = {2, 1, 2, 0, 3, 1};
  const auto some = dispatch_of_some(all, 2, tokens, experts);

  EXPECT_THAT(some.first_slot, ElementsAre(0, 1, 2, 3, 3));
  EXPECT_THAT(some.choice_of_slot, ElementsAre(3, 1, 0));
  EXPECT_THAT(some.slot_of_choice, ElementsAre(2, 1, kDropped, 0, kDropped, kDropped));
  EXPECT_THAT(some.dropped, ElementsAre(0, 0, 1, 0)) << "token 2's first choice";
}

TEST(Dispatch, AWeightThatIsNoNumberIsDroppedFirst) {
  const std::vector<std::int32_t> experts = {0, 0, 0};
  const std::vector<float> weights = {std::numeric_limits<float>::quiet_NaN(), 0.1F, 0.2F};

  EXPECT_THAT(dispatch<float>(1, experts, weights, 2).choice_of_slot, ElementsAre(1, 2));
}

TEST(Dispatch, CapacityIsTheSharePerExpertRoundedUp) {
  EXPECT_EQ(expert_capacity(100, 2, 8, 1.0), 25);
  EXPECT_EQ(expert_capacity(100, 2, 8, 1.25), 32) << "31.25, rounded up";
  EXPECT_EQ(expert_capacity(3, 1, 8, 1.0), 1);
  EXPECT_EQ(expert_capacity(0, 2, 8, 1.0), 0);
  EXPECT_EQ(expert_capacity(3, 2, 8, 1e300), 6) << "there are no more choices";
  EXPECT_THAT(expert_capacity(8, 2, 8, 0).error().message, HasSubstr("must be above 0, found 0"));
}

TEST(Dispatch, CombineWeighsATokensSlotsFromItsBestChoice) {
  const auto found = dispatch<float>(4, kExperts, kWeights, 2, DropPolicy::position);
  const std::vector<float> slots = {1, 2, 4, 8, 16};
  std::vector<float> tokens = {100, 200, 300};

  combine<float>(found, 2, 1, kWeights, slots, tokens);

  // 0.5 * slot 3 + 0.25 * slot 0; 0.75 * slot 4 + 0.125 * slot 2; expert 2 dropped, 0.5 * slot 1.
  EXPECT_THAT(tokens, ElementsAre(104.25F, 212.5F, 301.0F));
}

TEST(Dispatch, SumsInTheOrderOfChoicesWhereverSlotsLie) {
  // The better choice is the expert with the higher number, so by slots the 1 would come first and be lost.
  const std::vector<std::int32_t> experts = {1, 0};
  const std::vector<float> ones = {1, 1}, slots = {1, -1e8F};
  const auto found = dispatch<float>(2, experts, ones);
  std::vector<float> combined = {1e8F}, gathered = {1e8F};

  combine<float>(found, 2, 1, ones, slots, combined);
  gather_tokens_backward<float>(found, 2, 1, slots, gathered);

  EXPECT_THAT(combined, ElementsAre(1));
  EXPECT_THAT(gathered, ElementsAre(1));
}

TEST(Dispatch, GradientsAgreeWithFiniteDifferences) {
  const auto logits = some_logits<double>(20);
  std::vector<double> weights(kWeights.begin(), kWeights.end()), x(logits.begin(), logits.begin() + 9),
      d_y(logits.begin() + 40, logits.begin() + 49);
  const auto plan = dispatch<double>(4, kExperts, weights, 2, DropPolicy::position);
  const auto slots = static_cast<std::size_t>(plan.slots());
  std::vector<double> gathered(slots * 3), d_slots(slots * 3), d_weights(6), d_x(9);
  // y = combine of the squares of what was gathered.
  const auto outputs = [&] {
    gather_tokens<double>(plan, 2, 3, x, gathered);
    std::vector<double> squares;
    for (const double value : gathered) squares.push_back(value * value);
    return squares;
  };

  combine_backward<double>(plan, 2, 3, weights, outputs(), d_y, d_slots, d_weights);
  for (std::size_t i = 0; i < d_slots.size(); ++i) d_slots[i] *= 2 * gathered[i];
  gather_tokens_backward<double>(plan, 2, 3, d_slots, d_x);

  const auto objective = [&] {
    std::vector<double> y(9);
    combine<double>(plan, 2, 3, weights, outputs(), y);
    return std::inner_product(y.begin(), y.end(), d_y.begin(), 0.0);
  };
  expect_gradient(x, d_x, objective);
  expect_gradient(weights, d_weights, objective);
  EXPECT_EQ(d_weights[4], 0) << "dropped";
}

struct AnyBatch {
  std::size_t experts = 1, choices = 1;
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
};

/// Now and then no token at all, or all tokens to one expert.
AnyBatch any_batch() {
  AnyBatch batch;
  batch.experts = *rc::gen::inRange<std::size_t>(1, 12);
  batch.choices = *rc::gen::inRange<std::size_t>(1, batch.experts + 1);
  const auto tokens = *rc::gen::inRange(0, 30);
  const bool to_one = *rc::gen::inRange(0, 5) == 0;
  for (int token = 0; token < tokens; ++token) {
    std::vector<std::int32_t> order(batch.experts);
    std::iota(order.begin(), order.end(), 0);
    const auto first = to_one ? 0 : *rc::gen::inRange<std::size_t>(0, batch.experts);
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(first), order.end());
    batch.chosen.insert(batch.chosen.end(), order.begin(),
                        order.begin() + static_cast<std::ptrdiff_t>(batch.choices));
    for (std::size_t k = 0; k < batch.choices; ++k)
      batch.weights.push_back(static_cast<float>(*rc::gen::inRange(0, 8)));
  }
  return batch;
}

RC_GTEST_PROP(DispatchProperty, EachChoiceHasOneSlotOrCountsAsDropped, ()) {
  const auto batch = any_batch();
  std::optional<std::int64_t> capacity;
  if (*rc::gen::arbitrary<bool>()) capacity = *rc::gen::inRange<std::int64_t>(0, 12);
  const auto policy = *rc::gen::element(DropPolicy::position, DropPolicy::probability);

  const auto plan = dispatch<float>(batch.experts, batch.chosen, batch.weights, capacity, policy);

  std::vector<std::int64_t> asked(batch.experts), dropped(batch.experts);
  for (std::size_t choice = 0; choice < batch.chosen.size(); ++choice) {
    const auto expert = static_cast<std::size_t>(batch.chosen[choice]);
    ++asked[expert];
    const auto slot = plan.slot_of_choice[choice];
    if (slot == kDropped) {
      ++dropped[expert];
      continue;
    }
    RC_ASSERT(slot >= plan.first_slot[expert] && slot < plan.first_slot[expert + 1]);
    RC_ASSERT(plan.choice_of_slot[static_cast<std::size_t>(slot)] == static_cast<std::int64_t>(choice));
  }
  RC_ASSERT(plan.dropped == dropped);
  std::int64_t kept = 0;
  for (std::size_t e = 0; e < batch.experts; ++e) {
    RC_ASSERT(plan.count(e) == std::min(asked[e], capacity.value_or(asked[e])));
    RC_ASSERT(plan.count(e) + dropped[e] == asked[e]);
    RC_ASSERT(std::is_sorted(plan.choice_of_slot.begin() + plan.first_slot[e],
                             plan.choice_of_slot.begin() + plan.first_slot[e + 1]));
    kept += plan.count(e);
  }
  RC_ASSERT(kept == plan.slots());
}

RC_GTEST_PROP(DispatchProperty, EachKeptChoiceComesBackToItsTokenOnce, ()) {
  const auto batch = any_batch();
  const auto capacity = *rc::gen::inRange<std::int64_t>(0, 40);
  const auto plan = dispatch<float>(batch.experts, batch.chosen, batch.weights, capacity);
  const std::size_t tokens = batch.chosen.size() / batch.choices;
  std::vector<float> x(tokens), gathered(static_cast<std::size_t>(plan.slots())), y(tokens);
  std::iota(x.begin(), x.end(), 1.0F);
  const std::vector<float> ones(batch.weights.size(), 1.0F);

  gather_tokens<float>(plan, batch.choices, 1, x, gathered);
  combine<float>(plan, batch.choices, 1, ones, gathered, y);

  for (std::size_t token = 0; token < tokens; ++token) {
    float kept = 0;
    for (std::size_t k = 0; k < batch.choices; ++k)
      kept += plan.slot_of_choice[token * batch.choices + k] == kDropped ? 0.0F : 1.0F;
    RC_ASSERT(y[token] == kept * x[token]);
  }
}

}  // namespace
}  // namespace troupe::core
