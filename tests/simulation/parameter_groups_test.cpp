#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/checkpoint/steps_missed.hpp"
#include "core/random.hpp"
#include "tests/actors/planes/checkpoint/stored_checkpoint.hpp"
#include "tests/core/checkpoint/saved_job.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::actors {
namespace {

using core::OptimizerKind;

/// Two matrices and two vectors; gradients that no two places share.
Script script_of(std::vector<core::ParameterGroup> groups, std::vector<std::size_t> members) {
  Script script;
  script.parameters = {{"wide", {6, 20}}, {"bias", {31}}, {"tall", {25, 7}}, {"norm", {19}}};
  for (std::size_t p = 0; p < members.size(); ++p) script.parameters[p].group = members[p];
  script.parameters[1].weight_decay = false;
  script.steps = 3;
  script.learning_rate = 0.02;
  auto& training = script.session.training;
  training.lanes = 4;
  training.bucket_elements = 60;
  training.groups = std::move(groups);
  script.initial = [](std::uint32_t p, std::size_t i) { return core::CounterRandom(p, "initial").normal(i); };
  script.gradient = [](const GradientPlace& place) {
    return core::CounterRandom(place.parameter, "gradient", place.step, place.lane).normal(place.element);
  };
  return script;
}

void expect_values_on_any_ranks(Script script) {
  const auto expected = expected_values(script);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int instances : {0, 1, 2}) {
      if (instances == 2 && ranks % 2 != 0) continue;
      auto& training = script.session.training;
      training.strategy = instances == 0 ? core::Strategy::ddp : core::Strategy::zero1;
      training.optimizer_instances = std::max(instances, 1);

      const auto outcome = simulate_script(ranks, script);

      ASSERT_EQ(problems_of(outcome.report), "") << ranks << " ranks, " << instances << " instances";
      for (const auto& rank : outcome.ranks) {
        ASSERT_EQ(rank.after.back(), expected) << ranks << " ranks, " << instances << " instances";
      }
    }
  }
}

TEST(ParameterGroupsOfAJob, StepByOwnOptimizerRateAndDecayAnywhere) {
  expect_values_on_any_ranks(script_of({{1, {.kind = OptimizerKind::adamw, .weight_decay = 0.1}},
                                        {0.5, {.kind = OptimizerKind::lion, .weight_decay = 0.2}},
                                        {2, {.kind = OptimizerKind::sgd, .momentum = 0.9}}},
                                       {0, 1, 2, 1}));
}

TEST(ParameterGroupsOfAJob, MayDifferInNothingButTheirRate) {
  expect_values_on_any_ranks(script_of({{1, {}}, {0.125, {}}}, {0, 1, 1, 0}));
}

// Covers whole-24, state-15.
TEST(Muon, StepsWholeMatricesBesideAdamWOnAnyRanks) {
  for (const auto dtype : {core::DType::f32, core::DType::bf16}) {
    auto script =
        script_of({{1, {.kind = OptimizerKind::muon}}, {0.1, {.kind = OptimizerKind::adamw}}}, {0, 1, 0, 1});
    for (auto& parameter : script.parameters) parameter.dtype = dtype;
    expect_values_on_any_ranks(script);
  }
}

TEST(Muon, MayStepAllParametersWhereAllAreMatrices) {
  Script script = script_of({}, {});
  script.parameters = {{"wide", {6, 20}}, {"tall", {25, 7}}, {"square", {9, 9}}};
  script.session.training.optimizer = {
      .kind = OptimizerKind::muon, .nesterov = false, .scale = core::MuonScale::match_rms_adamw};
  expect_values_on_any_ranks(script);
}

TEST(Muon, OfVectorsIsRefusedBeforeAnythingRuns) {
  Script script = script_of({}, {});
  script.session.training.optimizer.kind = OptimizerKind::muon;

  const auto outcome = simulate_script(2, script);

  EXPECT_THAT(problems_of(outcome.report),
              testing::HasSubstr("muon steps matrices, which have two dimensions, but parameter bias"));
}

/// Weights are matrices of 4 rows, biases are vectors.
TinyTrainerOptions tiny_job_of(std::vector<core::ParameterGroup> groups, core::Strategy strategy) {
  auto options = tiny_job(strategy);
  options.session.checkpoint.deadline = std::chrono::seconds(30);
  options.rows = 4;
  options.bias_group = groups.size() - 1;
  options.session.training.groups = std::move(groups);
  return options;
}

JobOutcome<TinyTrainerResult> run_on(Storage& disk, int ranks, const TinyTrainerOptions& options) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = 7;
  simulation.storage = &disk;
  return simulate_tiny(simulation, options);
}

// Covers state-11, state-16, state-17.
TEST(ParameterGroupsOfAJob, GoOnBitwiseOnOtherDdpAndZero1Ranks) {
  const core::ParameterGroup lion{1, {.kind = OptimizerKind::lion}};
  const core::ParameterGroup muon{1, {.kind = OptimizerKind::muon}};
  const core::ParameterGroup adamw{0.5, {}};
  for (const auto& groups : {std::vector{lion}, {muon, adamw}, {adamw, lion}}) {
    auto whole = tiny_job_of(groups, core::Strategy::ddp);
    whole.steps = 6;
    const auto expected = simulate_tiny(1, 1, whole).ranks[0].state_hash;
    for (const auto& [from, to] : {std::pair{1, 3}, {4, 2}, {3, 1}, {2, 4}}) {
      for (const auto saved : {core::Strategy::ddp, core::Strategy::zero1}) {
        SimulatedStorage disk({});
        auto saving = tiny_job_of(groups, saved);
        saving.steps = saving.save_every = 3;
        ASSERT_EQ(problems_of(run_on(disk, from, saving).report), "");
        auto loading =
            tiny_job_of(groups, saved == core::Strategy::ddp ? core::Strategy::zero1 : core::Strategy::ddp);
        loading.steps = 6;
        loading.restore = true;

        const auto after = run_on(disk, to, loading);

        ASSERT_EQ(problems_of(after.report), "");
        for (const auto& rank : after.ranks) {
          ASSERT_TRUE(rank.restored);
          EXPECT_EQ(rank.restored->step, core::Step{3});
          EXPECT_EQ(rank.state_hash, expected) << from << " to " << to << " ranks";
        }
      }
    }
  }
}

/// What the checkpoint says of steps that parameters did not take.
void set_steps_missed(Storage& disk, const std::string& name, core::Value missed) {
  auto manifest = read_manifest(disk, name).value();
  manifest.common.as_map()->set(core::kStepsMissedKey, std::move(missed));
  ASSERT_TRUE(write_whole(disk, path_in(name, core::kManifestName), core::bytes_in(core::to_text(manifest))));
}

JobOutcome<ScriptResult> run_on(Storage& disk, int ranks, const Script& script) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.storage = &disk;
  return simulate_script(std::move(simulation), script);
}

/// AdamW divides moments by what they can have reached in the steps that the parameter took.
TEST(StepsThatParametersMissed, AreNotCountedForThemAndStayInCheckpoints) {
  auto script =
      script_of({{1, {.kind = OptimizerKind::adamw, .weight_decay = 0.1}}, {0.5, {}}}, {0, 1, 0, 1});
  script.steps = 7;
  script.save_after = 3;
  script.steps_missed = {0, 3, 2, 0};
  const auto expected = expected_values(script);
  auto saving = script;
  saving.steps = 3;
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero3}) {
    SimulatedStorage disk({});
    ASSERT_EQ(problems_of(run_on(disk, 2, saving).report), "");
    set_steps_missed(disk, "step_00000003", core::value_of(core::StepsMissed{{"bias", 3}, {"tall", 2}}));
    auto going_on = script;
    going_on.restore = true;
    going_on.session.training.strategy = strategy;
    for (auto& parameter : going_on.parameters) parameter.unit = core::UnitIndex{0};
    going_on.steps = going_on.save_after = 5;
    ASSERT_EQ(problems_of(run_on(disk, 3, going_on).report), "");
    going_on.steps = 7;

    const auto outcome = run_on(disk, 4, going_on);

    ASSERT_EQ(problems_of(outcome.report), "");
    EXPECT_EQ(outcome.ranks[0].outcomes.size(), 2U) << "from the second checkpoint";
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected);
  }
}

TEST(StepsThatParametersMissed, AreRefusedWhereTheyAreMoreThanThereWere) {
  auto script = script_of({}, {});
  script.save_after = 3;
  for (const core::Value& wrong : {core::Value(core::Value::Map{{"bias", 4}}), core::Value("bias"),
                                   core::Value(core::Value::Map{{"bias", -1}})}) {
    SimulatedStorage disk({});
    ASSERT_EQ(problems_of(run_on(disk, 2, script).report), "");
    set_steps_missed(disk, "step_00000003", wrong);
    auto going_on = script;
    going_on.restore = true;

    const auto outcome = run_on(disk, 2, going_on);

    EXPECT_THAT(problems_of(outcome.report), testing::HasSubstr(core::kStepsMissedKey));
  }
}

}  // namespace
}  // namespace troupe::actors
