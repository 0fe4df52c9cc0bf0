#include "actors/session/last_step.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"

namespace troupe::actors {
namespace {

StepOutcome outcome() {
  StepOutcome outcome;
  outcome.step = {41};
  outcome.committed = false;
  outcome.reason = "rank 1: \"no\"";
  outcome.loss = std::numeric_limits<double>::quiet_NaN();
  outcome.weight = 0.1;
  outcome.gradient_norm = std::numeric_limits<double>::infinity();
  outcome.clip_factor = -0.0;
  outcome.usual_norm = std::numeric_limits<double>::denorm_min();
  outcome.loss_scale = 65536;
  outcome.nonfinite_gradients = 3;
  outcome.wishes = 5;
  return outcome;
}

TEST(LastStep, KeepsEveryBitThroughText) {
  const auto text = core::value_text(value_of(outcome())).value();

  const auto values = core::parse_value(text).value();
  const auto found = last_step_of(&values, {42}).value().value();

  const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };
  EXPECT_EQ(found.step, outcome().step);
  EXPECT_EQ(found.committed, outcome().committed);
  EXPECT_EQ(found.reason, outcome().reason);
  EXPECT_EQ(bits(found.loss), bits(outcome().loss));
  EXPECT_EQ(bits(found.weight), bits(outcome().weight));
  EXPECT_EQ(bits(found.gradient_norm), bits(outcome().gradient_norm));
  EXPECT_EQ(bits(found.clip_factor), bits(outcome().clip_factor));
  EXPECT_EQ(bits(found.usual_norm), bits(outcome().usual_norm));
  EXPECT_EQ(bits(found.loss_scale), bits(outcome().loss_scale));
  EXPECT_EQ(found.nonfinite_gradients, outcome().nonfinite_gradients);
  EXPECT_EQ(found.wishes, outcome().wishes);
}

TEST(LastStep, IsRefusedWhereSomethingIsMissing) {
  EXPECT_FALSE(last_step_of(nullptr, {42}).value().has_value()) << "saves of before do not say";
  const core::Value all = value_of(outcome());
  for (const auto& entry : all.as_map()->entries()) {
    auto without = all, altered = all;
    without.as_map()->erase(entry.key);
    altered.as_map()->set(entry.key, core::Value::List{});

    for (const auto* value : {&without, &altered}) {
      const auto found = last_step_of(value, {42});
      ASSERT_FALSE(found) << core::to_string(entry.key);
      EXPECT_EQ(found.error().code, core::Errc::mismatch);
    }
  }
}

}  // namespace
}  // namespace troupe::actors
