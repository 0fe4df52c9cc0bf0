#include "core/optimizer/loss_scaler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;

constexpr bool kFinite = true;
constexpr bool kOverflow = false;

LossScaling dynamic() {
  return {.kind = LossScale::dynamic, .scale = 8, .interval = 2};
}

std::vector<double> scales(LossScaler& scaler, const std::vector<bool>& steps) {
  std::vector<double> seen;
  for (const bool step : steps) {
    scaler.update(step);
    seen.push_back(scaler.scale());
  }
  return seen;
}

TEST(LossScaler, WithNoneOrAFixedScaleNeverChanges) {
  LossScaler none({});
  LossScaler fixed({.kind = LossScale::fixed, .scale = 100});

  EXPECT_EQ(none.scale(), 1);
  EXPECT_EQ(scales(none, {kOverflow, kFinite}), (std::vector<double>{1, 1}));
  EXPECT_EQ(scales(fixed, {kOverflow, kFinite}), (std::vector<double>{100, 100}));
  EXPECT_FALSE(none.is_dynamic() || fixed.is_dynamic());
  EXPECT_TRUE(fixed.restore({.scale = 7}));
  EXPECT_EQ(fixed.scale(), 100);
}

TEST(LossScaler, HasTheDefaultsOfPyTorch) {
  const LossScaling defaults{.kind = LossScale::dynamic};
  LossScaler scaler(defaults);

  EXPECT_EQ(scaler.scale(), 65536);
  for (int step = 0; step < 1999; ++step) scaler.update(kFinite);
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.update(kFinite);
  EXPECT_EQ(scaler.scale(), 131072);
  scaler.update(kOverflow);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST(LossScaler, CountsFiniteStepsFromTheLastOverflow) {
  LossScaler scaler(dynamic());

  EXPECT_EQ(scales(scaler, {kFinite, kOverflow, kFinite, kFinite, kFinite, kFinite}),
            (std::vector<double>{8, 4, 4, 8, 8, 16}));
}

TEST(LossScaler, NeverFallsBelowTheMinimum) {
  auto settings = dynamic();
  settings.minimum = 3;
  LossScaler scaler(settings);

  EXPECT_EQ(scales(scaler, {kOverflow, kOverflow, kOverflow}), (std::vector<double>{4, 3, 3}));
}

/// Like Megatron-Core's DynamicGradScaler: growing alone gives the tolerance back.
// Covers shard-10.
TEST(LossScaler, ToleratesOverflowsUpToTheHysteresis) {
  auto settings = dynamic();
  settings.hysteresis = 2;
  LossScaler scaler(settings);

  EXPECT_EQ(scales(scaler, {kOverflow, kFinite, kOverflow, kOverflow, kFinite, kFinite, kOverflow}),
            (std::vector<double>{8, 8, 4, 2, 2, 4, 4}));
}

TEST(LossScaler, StaysAFloat) {
  auto settings = dynamic();
  settings.scale = 0x1p127;
  LossScaler scaler(settings);

  EXPECT_EQ(scales(scaler, {kFinite, kFinite, kFinite, kFinite}), std::vector<double>(4, 0x1p127));
}

TEST(LossScaler, GoesOnFromItsState) {
  auto settings = dynamic();
  settings.hysteresis = 2;
  LossScaler first(settings), second(settings);
  scales(first, {kFinite, kFinite, kOverflow, kFinite});

  ASSERT_TRUE(second.restore(first.state()));

  EXPECT_EQ(second.scale(), 16);
  const std::vector<bool> steps = {kOverflow, kFinite, kFinite, kFinite};
  EXPECT_EQ(scales(second, steps), scales(first, steps));
}

TEST(LossScaler, CountsOtherSettingsStateAsItsOwnAllow) {
  LossScaler scaler(dynamic());

  ASSERT_TRUE(scaler.restore({.scale = 4, .finite_steps = 1000, .overflows_left = 9}));

  EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 4, .finite_steps = 1, .overflows_left = 1}));
}

TEST(LossScaler, RefusesWhatIsNoState) {
  LossScaler scaler(dynamic());

  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const LossScaler::State& wrong :
       {LossScaler::State{.scale = nan}, {.scale = -1}, {.finite_steps = -1}}) {
    const auto restored = scaler.restore(wrong);
    ASSERT_FALSE(restored);
    EXPECT_EQ(restored.error().code, Errc::mismatch);
    EXPECT_EQ(scaler.scale(), 8);
  }
}

TEST(LossScaling, IsCheckedSettingBySetting) {
  const auto error_of = [](auto change) {
    LossScaling settings{.kind = LossScale::dynamic};
    change(settings);
    const auto checked = check(settings);
    return checked ? std::string() : checked.error().message;
  };

  EXPECT_EQ(error_of([](auto&) {}), "");
  EXPECT_THAT(error_of([](auto& s) { s.scale = 0; }), HasSubstr("losses cannot be scaled by 0"));
  EXPECT_THAT(error_of([](auto& s) { s.scale = 1e39; }), HasSubstr("losses cannot be scaled by 1e+39"));
  EXPECT_THAT(error_of([](auto& s) { s.growth = 1; }), HasSubstr("grows by a factor above 1"));
  EXPECT_THAT(error_of([](auto& s) { s.backoff = 1; }), HasSubstr("found 2 and 1"));
  EXPECT_THAT(error_of([](auto& s) { s.minimum = 65537; }), HasSubstr("at most the first one"));
  EXPECT_THAT(error_of([](auto& s) { s.interval = 0; }), HasSubstr("found 0 and 1"));
  EXPECT_THAT(error_of([](auto& s) { s.hysteresis = 0; }), HasSubstr("found 2000 and 0"));
  EXPECT_EQ(error_of([](auto& s) {
              s.kind = LossScale::none;
              s.scale = 0;
            }),
            "");
}

TEST(LossScaling, ThatDiffersReadsDifferently) {
  EXPECT_EQ(describe(LossScaling{}), "loss scale none");
  EXPECT_EQ(describe(LossScaling{.kind = LossScale::fixed, .scale = 128}), "loss scale 128");
  EXPECT_EQ(describe(LossScaling{.kind = LossScale::dynamic}),
            "loss scale dynamic from 65536 growth 2 interval 2000 backoff 0.5 minimum 1 hysteresis 1");
}

}  // namespace
}  // namespace troupe::core
