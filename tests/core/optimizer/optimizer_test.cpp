#include "core/optimizer/optimizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/optimizer/parameter_groups.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Optimizers, AreFoundByTheirNames) {
  ASSERT_EQ(optimizers().size(), 5U);
  for (const auto& traits : optimizers()) {
    EXPECT_EQ(optimizer_from_name(traits.name).value(), traits.kind);
    EXPECT_EQ(name_of(traits.kind), traits.name);
  }
  EXPECT_EQ(optimizer_from_name("adamax").error().message,
            "'adamax' is not an optimizer; choose one of sgd, adam, adamw, lion, muon");
}

TEST(Optimizers, KeepStatesByTheNamesOfPyTorch) {
  const auto states = [](OptimizerKind kind, std::optional<double> momentum = {}) {
    return states_of(settings_of({.kind = kind, .momentum = momentum}));
  };
  EXPECT_THAT(states(OptimizerKind::sgd), IsEmpty());
  EXPECT_THAT(states(OptimizerKind::sgd, 0.9), ElementsAre("momentum_buffer"));
  EXPECT_THAT(states(OptimizerKind::adam), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(states(OptimizerKind::adamw), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(states(OptimizerKind::lion), ElementsAre("exp_avg"));
  EXPECT_THAT(states(OptimizerKind::muon), ElementsAre("momentum_buffer"));
  EXPECT_THAT(states(OptimizerKind::muon, 0), ElementsAre("momentum_buffer"));
}

TEST(Optimizers, HaveTheDefaultsOfPyTorchAndLionsAuthors) {
  const auto defaults = [](OptimizerKind kind) { return settings_of({.kind = kind}); };
  EXPECT_EQ(defaults(OptimizerKind::sgd).momentum, 0);
  EXPECT_EQ(defaults(OptimizerKind::sgd).weight_decay, 0);
  for (const auto kind : {OptimizerKind::adam, OptimizerKind::adamw}) {
    EXPECT_EQ(defaults(kind).beta1, 0.9);
    EXPECT_EQ(defaults(kind).beta2, 0.999);
    EXPECT_EQ(defaults(kind).epsilon, 1e-8);
    EXPECT_EQ(defaults(kind).weight_decay, kind == OptimizerKind::adamw ? 0.01 : 0);
  }
  EXPECT_EQ(defaults(OptimizerKind::lion).beta1, 0.9);
  EXPECT_EQ(defaults(OptimizerKind::lion).beta2, 0.99);
  EXPECT_EQ(defaults(OptimizerKind::lion).weight_decay, 0);
  const auto muon = defaults(OptimizerKind::muon);
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_EQ(muon.weight_decay, 0.1);
  EXPECT_EQ(muon.epsilon, 1e-7);
  EXPECT_TRUE(muon.nesterov);
  EXPECT_EQ(muon.newton_schulz_steps, 5);
  EXPECT_THAT(muon.coefficients, ElementsAre(3.4445, -4.7750, 2.0315));
}

TEST(Optimizers, TakeWhatTheUserGivesInsteadOfTheirDefaults) {
  const auto lion = settings_of({.kind = OptimizerKind::lion, .beta2 = 0.98, .weight_decay = 1});
  EXPECT_EQ(lion.beta2, 0.98);
  EXPECT_EQ(lion.weight_decay, 1);
}

TEST(Optimizers, NeedWholeMatricesOnlyWhereTheyStepThem) {
  for (const auto& traits : optimizers()) {
    EXPECT_EQ(traits.takes_matrices_only(), traits.kind == OptimizerKind::muon) << traits.name;
  }
}

TEST(MuonScale, FollowsTheTwoRules) {
  EXPECT_EQ(muon_scale(MuonScale::original, 12, 3), 2);
  EXPECT_EQ(muon_scale(MuonScale::original, 3, 12), 1);
  EXPECT_EQ(muon_scale(MuonScale::match_rms_adamw, 25, 100), 2);
  EXPECT_EQ(muon_scale(MuonScale::match_rms_adamw, 100, 25), 2);
}

struct WrongOption {
  const char* name;
  OptimizerOptions options;
  const char* message;

  friend std::ostream& operator<<(std::ostream& out, const WrongOption& of) { return out << of.name; }
};

class OptimizerOptionsOutOfRange : public testing::TestWithParam<WrongOption> {};

TEST_P(OptimizerOptionsOutOfRange, AreRefusedByName) {
  const TrainingOptions options{.optimizer = GetParam().options};

  const auto groups = parameter_groups(options, {});

  ASSERT_FALSE(groups);
  EXPECT_EQ(groups.error().code, Errc::invalid_argument);
  EXPECT_THAT(groups.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerOptionsOutOfRange,
    testing::Values(
        WrongOption{"Beta1", {.beta1 = 1}, "beta1 of adamw is 1; expected a number from 0 to below 1"},
        WrongOption{"Beta2", {.kind = OptimizerKind::lion, .beta2 = -0.5}, "beta2 of lion is -0.5"},
        WrongOption{"Epsilon", {.epsilon = -1}, "epsilon of adamw is -1; expected 0 or a finite number"},
        WrongOption{"Decay",
                    {.weight_decay = std::numeric_limits<double>::quiet_NaN()},
                    "the weight decay of adamw is nan"},
        WrongOption{"Momentum", {.kind = OptimizerKind::sgd, .momentum = 1}, "the momentum of sgd is 1"},
        WrongOption{"NoSteps", {.newton_schulz_steps = 0}, "0 Newton-Schulz steps; expected 1 to 99"},
        WrongOption{"ManySteps", {.newton_schulz_steps = 100}, "100 Newton-Schulz steps"},
        WrongOption{"Coefficients",
                    {.coefficients = {1, std::numeric_limits<double>::infinity(), 1}},
                    "the Newton-Schulz coefficients are 1, inf and 1"}),
    testing::PrintToStringParamName());

TEST(ParameterGroups, AreOneWithTheJobsOptimizerByDefault) {
  const TrainingOptions options{.optimizer = {.kind = OptimizerKind::lion}};

  const auto groups = parameter_groups(options, std::vector<ParameterSpec>{{"w", {3}}}).value();

  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].learning_rate_factor, 1);
  EXPECT_EQ(groups[0].optimizer, settings_of({.kind = OptimizerKind::lion}));
}

TEST(ParameterGroups, TakeWhatTheirOptimizersStep) {
  const TrainingOptions options{.groups = {{0.5, {.kind = OptimizerKind::muon}}, {}}};
  const std::vector<ParameterSpec> parameters{{.name = "matrix", .shape = {3, 4}},
                                              {.name = "norm", .shape = {4}, .group = 1}};

  const auto groups = parameter_groups(options, parameters).value();

  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].learning_rate_factor, 0.5);
  EXPECT_EQ(groups[0].optimizer.kind, OptimizerKind::muon);
  EXPECT_EQ(groups[1].optimizer.kind, OptimizerKind::adamw);
}

TEST(ParameterGroups, RefuseParametersOfNoGroup) {
  const auto groups =
      parameter_groups({}, std::vector<ParameterSpec>{{.name = "w", .shape = {1}, .group = 1}});

  EXPECT_EQ(groups.error().message,
            "parameter w is in group 1, but there are 1 groups, counted from 0; add the group to "
            "TrainingOptions::groups, or choose another");
}

TEST(ParameterGroups, RefuseAVectorWhereMatricesAreStepped) {
  const TrainingOptions options{.optimizer = {.kind = OptimizerKind::muon}};
  for (const auto& shape : {std::vector<std::int64_t>{7}, {2, 3, 4}}) {
    const auto groups = parameter_groups(options, std::vector<ParameterSpec>{{.name = "w", .shape = shape}});

    ASSERT_FALSE(groups);
    EXPECT_THAT(groups.error().message, HasSubstr("muon steps matrices, which have two dimensions, but "
                                                  "parameter w of group 0 has the shape ["));
    EXPECT_THAT(groups.error().message, HasSubstr("another optimizer, such as adamw"));
  }
}

TEST(ParameterGroups, RefuseAFactorThatIsNoNumber) {
  TrainingOptions options{.groups = {{}, {}}};
  for (const double factor : {-1.0, std::numeric_limits<double>::infinity()}) {
    options.groups[1].learning_rate_factor = factor;
    EXPECT_THAT(parameter_groups(options, {}).error().message,
                HasSubstr("the learning rate factor of parameter group 1 is"));
  }
}

}  // namespace
}  // namespace troupe::core
