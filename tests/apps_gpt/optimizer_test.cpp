#include "apps/gpt/model/optimizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/optimizer/parameter_groups.hpp"

namespace troupe::apps::gpt {
namespace {

using core::OptimizerKind;

std::vector<core::ParameterSpec> parameters_of(const core::TrainingOptions& training, bool tied) {
  auto config = preset("tiny").value();
  config.tied_embeddings = tied;
  return session_parameters(parameter_table(config), core::DType::f32, training);
}

// Covers whole-2.
TEST(ChosenOptimizer, MuonTakesBlockMatricesAndAdamWTheRest) {
  for (const bool tied : {true, false}) {
    core::TrainingOptions training;
    ASSERT_TRUE(choose_optimizer(training, "muon", {.beta2 = 0.9, .weight_decay = 0.2}));

    const auto parameters = parameters_of(training, tied);
    const auto groups = core::parameter_groups(training, parameters).value();

    EXPECT_EQ(groups[kMatrices].optimizer.kind, OptimizerKind::muon);
    EXPECT_EQ(groups[kMatrices].optimizer.weight_decay, 0.2);
    EXPECT_EQ(groups[kOthers].optimizer.kind, OptimizerKind::adamw);
    EXPECT_EQ(groups[kOthers].optimizer.beta2, 0.9);
    int matrices = 0;
    for (const auto& parameter : parameters) {
      const bool in_block = parameter.name.find(".layers.") != std::string::npos;
      const bool whole = in_block && parameter.shape.size() == 2;
      EXPECT_EQ(parameter.group, whole ? kMatrices : kOthers) << parameter.name;
      matrices += whole ? 1 : 0;
    }
    EXPECT_EQ(matrices, 7 * static_cast<int>(preset("tiny")->layers))
        << "four of attention, three of the MLP";
  }
}

TEST(ChosenOptimizer, LionAndAdamWStepTheWholeModel) {
  core::TrainingOptions training;
  ASSERT_TRUE(choose_optimizer(training, "muon", {}));
  for (const auto& [name, kind, beta2] :
       {std::tuple{"lion", OptimizerKind::lion, 0.99}, {"adamw", OptimizerKind::adamw, 0.95}}) {
    ASSERT_TRUE(choose_optimizer(training, name, {.beta2 = 0.95, .weight_decay = 0.1}));

    const auto groups = core::parameter_groups(training, parameters_of(training, true)).value();

    ASSERT_EQ(groups.size(), 1U);
    EXPECT_EQ(groups[0].optimizer.kind, kind);
    EXPECT_EQ(groups[0].optimizer.beta2, beta2);
    EXPECT_EQ(groups[0].optimizer.weight_decay, 0.1);
  }
}

TEST(ChosenOptimizer, IsRefusedByNameWhereTheModelHasNone) {
  core::TrainingOptions training;
  EXPECT_EQ(choose_optimizer(training, "sgd", {}).error().message,
            "'sgd' does not step this model; choose adamw, lion or muon");
}

}  // namespace
}  // namespace troupe::apps::gpt
