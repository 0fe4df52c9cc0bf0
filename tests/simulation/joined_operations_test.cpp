// Which collectives of a trainer's own may be declared, and that all ranks declare the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "actors/planes/step/rank_program.hpp"
#include "actors/session/role_configs.hpp"
#include "core/program/check_programs.hpp"
#include "tests/simulation/operation_job.hpp"

namespace troupe::actors::operations {
namespace {

using testing::HasSubstr;

/// What two ranks of which one declares something else are told, which is the same.
std::string told_when_joining(core::TrainingOptions training,
                              const std::function<void(SessionOptions&)>& edit,
                              const std::function<std::vector<core::ParameterSpec>(int)>& specs) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> Result<bool> {
    auto options = options_of({});
    options.training = training;
    for (auto& one : options.operations) one.group = training.expert_parallel > 1 ? "ep" : "tp";
    if (rank.rank().value == 1) edit(options);
    return TRY(Session::join(rank, options, specs(rank.rank().value))) != nullptr;
  });
  EXPECT_EQ(violations_of(outcome.report), "");
  for (const auto& result : outcome.report.results) {
    if (result) return "it joined";
    EXPECT_EQ(result.error().code, core::Errc::mismatch);
    EXPECT_EQ(result.error().message, outcome.report.results[0].error().message);
  }
  return outcome.report.results[0].error().message;
}

TEST(DeclaredOperationsOfOneRank, ThatDifferAreNamedWhenItJoins) {
  core::TrainingOptions tensor;
  tensor.strategy = Strategy::zero3;
  tensor.tensor_parallel = 2;
  const auto alike = [](int) { return parameters(); };
  const auto more = [](SessionOptions& options) { options.operations[4].counts = {7, 7}; };
  const std::string difference = "rank 1 runs with other settings than rank 0: rank 0 has ";

  const auto told = told_when_joining(tensor, more, alike);

  EXPECT_EQ(told_when_joining(
                tensor, [](SessionOptions&) {}, alike),
            "it joined");
  EXPECT_THAT(told, HasSubstr(difference));
  EXPECT_THAT(told,
              HasSubstr("all_to_all on tp in 'backward of unit 1' dtype=u8 counts=bounded at most 2x6"));
  EXPECT_THAT(told,
              HasSubstr("all_to_all on tp in 'backward of unit 1' dtype=u8 counts=bounded at most 2x7"));
  EXPECT_THAT(told_when_joining(
                  tensor, [](SessionOptions& options) { options.operations.clear(); }, alike),
              HasSubstr("the trainer's own, in each round:"));
}

TEST(DeclaredOperationsOfOneRank, AreComparedAlsoBetweenRanksThatHaveOtherExperts) {
  core::TrainingOptions spread;
  spread.strategy = Strategy::zero3;
  spread.expert_parallel = 2;
  const auto own_experts = [](int rank) {
    auto specs = parameters();
    specs[2].name += "." + std::to_string(rank);
    specs[2].is_expert = true;
    return specs;
  };

  EXPECT_EQ(told_when_joining(
                spread, [](SessionOptions&) {}, own_experts),
            "it joined");
  EXPECT_THAT(
      told_when_joining(
          spread, [](SessionOptions& options) { options.operations[0].dtype = DType::bf16; }, own_experts),
      HasSubstr("all_reduce on ep in 'forward of unit 0' dtype=bf16 counts=even 2x4"));
}

/// What all ranks are told when those with other experts go through their units in another order, so that
/// each waits in an operation of one unit for the others, which wait in that of another.
std::string told_of_circle(int ranks, Strategy strategy) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> Result<bool> {
    auto options = options_of({.strategy = strategy});
    options.training.tensor_parallel = 1;
    options.training.expert_parallel = 2;
    options.training.lanes = ranks;
    for (auto& one : options.operations) one.group = "ep";
    auto specs = parameters();
    const int experts = rank.rank().value % 2;
    specs[2].name += "." + std::to_string(experts);
    specs[2].is_expert = true;
    if (experts == 1) options.order = {{{1}, {0}, {2}}, {{2}, {0}, {1}}};
    return TRY(Session::join(rank, options, specs)) != nullptr;
  });
  EXPECT_EQ(violations_of(outcome.report), "");
  EXPECT_LT(outcome.report.virtual_time, std::chrono::seconds(1));
  for (const auto& result : outcome.report.results) {
    if (result) return "it joined";
    EXPECT_EQ(result.error().message, outcome.report.results[0].error().message);
  }
  return outcome.report.results[0].error().message;
}

TEST(DeclaredOperationsOfOneRank, AwaitingEachOtherAreRefusedEverywhereAtTheJoin) {
  for (const auto strategy : {Strategy::zero2, Strategy::zero3}) {
    for (const int ranks : {2, 4}) {
      const auto told = told_of_circle(ranks, strategy);

      EXPECT_THAT(told, HasSubstr("the ranks' programs do not fit together: "));
      EXPECT_THAT(told, HasSubstr("rank 0"));
      EXPECT_THAT(told, HasSubstr("rank 1"));
      if (strategy == Strategy::zero3) {
        EXPECT_THAT(told, HasSubstr("one of them has changed places"));
        continue;
      }
      EXPECT_THAT(told, HasSubstr("on ep in 'forward of unit 0'"));
      EXPECT_THAT(told, HasSubstr("on ep in 'forward of unit 1'"));
    }
  }
}

/// Why a plan with one operation more is refused.
std::string refused_plan(const std::function<void(DeclaredOperation&)>& spoil, Strategy strategy,
                         const std::function<void(std::vector<core::ParameterSpec>&)>& edit = {},
                         std::vector<core::UnitPass> passes = {}) {
  auto options = options_of({.strategy = strategy});
  auto specs = parameters();
  if (edit) edit(specs);
  spoil(options.operations.emplace_back(options.operations[1]));
  const auto plan =
      plan_training(specs, options.training, {2}, std::move(passes), options.order, options.operations);
  if (plan) return "";
  EXPECT_EQ(plan.error().code, core::Errc::invalid_argument);
  return plan.error().message;
}

TEST(DeclaredOperationsOfAPlan, AreRefusedByNameUnderEveryStrategyAlike) {
  const auto without_units = [](std::vector<core::ParameterSpec>& specs) {
    for (auto& spec : specs) spec.unit.reset();
  };
  const std::string sixth = "SessionOptions::operations[5], all_reduce on \"tp\": ";
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    EXPECT_EQ(refused_plan([](auto&) {}, strategy), "");
    EXPECT_EQ(
        refused_plan([](auto& one) { one.group = "ep"; }, strategy),
        "SessionOptions::operations[5], all_reduce on \"ep\": group 'ep' is none of the axes along which "
        "this job is cut, which are tp; leave its operations undeclared");
    EXPECT_EQ(refused_plan(
                  [](auto& one) {
                    one.counts = {4, 4, 4};
                  },
                  strategy),
              sixth + "it has counts of 3 members, but tp has 2; give one for each");
    EXPECT_EQ(refused_plan(
                  [](auto& one) {
                    one.counts = {4, -1};
                  },
                  strategy),
              sixth + "a member puts in -1 elements; give 0 or more");
    EXPECT_EQ(refused_plan([](auto& one) { one.pass = core::Pass::weights; }, strategy),
              sixth + "it is in the pass weights; operations are in forward or backward");
    EXPECT_EQ(refused_plan([](auto& one) { one.unit = core::UnitIndex{3}; }, strategy),
              sixth + "it is in unit 3, but parameters name units 0 to 2; give one of these");
    EXPECT_EQ(refused_plan([](auto& one) { one.unit.reset(); }, strategy),
              sixth + "it is in no unit, but parameters name units 0 to 2; give one of these");
    EXPECT_THAT(
        refused_plan(
            [](auto& one) {
              one.bounded = true;
              one.unit = core::UnitIndex{0};
            },
            strategy),
        HasSubstr("has bounded counts, at most 2x4, and nothing in the round told the members of tp"));
    EXPECT_THAT(refused_plan([](auto&) {}, strategy, {},
                             {{core::Pass::forward, 0, 0, 3}, {core::Pass::backward, 0, 0, 3}}),
                HasSubstr("a pipeline stage has several at once; leave its operations undeclared"));
  }
  EXPECT_EQ(refused_plan([](auto&) {}, Strategy::ddp, without_units),
            "SessionOptions::operations[0], all_reduce on \"tp\": it is in unit 0, but no parameter names a "
            "unit; leave the unit out");
}

TEST(DeclaredOperationsOfAPlan, NameNoUnitWhereNoParameterDoes) {
  auto options = options_of({.strategy = Strategy::zero1});
  auto specs = parameters();
  for (auto& spec : specs) spec.unit.reset();
  for (auto& one : options.operations) one.unit.reset();

  const auto plan = plan_training(specs, options.training, {2}, {}, {}, options.operations);

  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->inputs.operations.size(), options.operations.size());
}

TEST(DeclaredOperationsOfAPlan, ComeAfterUnitsThatTheTrainerDoesNotKnow) {
  const auto options = options_of({.strategy = Strategy::zero3});
  auto specs = parameters();
  specs.push_back({"read anywhere", {16}});

  const auto plan = plan_training(specs, options.training, {2}, {}, {}, options.operations).value();

  ASSERT_EQ(plan.resident_units, 1);
  const auto runs = core::fold(plan.inputs.operations);
  EXPECT_EQ(runs.front().operations.front().point, (core::TrainerPoint{core::Phase::forward, 1}));
  EXPECT_EQ(runs.back().operations.back().point, (core::TrainerPoint{core::Phase::backward, 2}));
}

/// The programs of both ranks, as a check of files would see them.
TEST(DeclaredOperationsOfAPlan, AreInThePrograms) {
  for (const auto strategy : {Strategy::zero1, Strategy::zero3}) {
    const auto options = options_of({.strategy = strategy});
    const auto plan =
        plan_training(parameters(), options.training, {2}, {}, options.order, options.operations).value();
    const RankProgram first(plan, {0}), second(plan, {1});

    EXPECT_EQ(core::unfold(first.program().operations).size(), 5U);
    EXPECT_TRUE(core::check_programs(core::checked_job(plan.mesh, {&first.program(), &second.program()})));
  }
}

TEST(DeclaredOperationsOfAPlan, ArePartOfItsHash) {
  const auto hash_of = [](const std::vector<DeclaredOperation>& operations) {
    const auto options = options_of({.operations = operations});
    const auto plan =
        plan_training(parameters(), options.training, {2}, {}, options.order, options.operations).value();
    return supervisor_config(plan, RankProgram(plan, {0}), {}).plan_hash;
  };
  auto other = usual();
  other[3].counts = {2, 2};

  EXPECT_EQ(hash_of(usual()), hash_of(usual()));
  EXPECT_NE(hash_of(usual()), hash_of(other));
  EXPECT_NE(hash_of(usual()), hash_of({}));
}

TEST(DeclaredOperationsOfAPlan, CoverTheWholeLaneWhereUnitsAreBuckets) {
  const auto options = options_of({.strategy = Strategy::zero1});
  const auto plan =
      plan_training(parameters(), options.training, {2}, {}, options.order, options.operations).value();

  EXPECT_EQ(core::lines(RankProgram(plan, {0}).program().operations),
            (std::vector<std::string>{
                "the trainer's own, in each round:", " x2 unit+0:",
                "  all_reduce on tp in 'forward of unit 0' dtype=f32 counts=even 2x4",
                "  all_gather on tp in 'forward of unit 0' dtype=i64 counts=even 2x1",
                "  all_reduce on tp in 'forward of unit 0' dtype=f32 counts=even 2x4",
                "  all_to_all on tp in 'backward of unit 2' dtype=u8 counts=bounded at most 2x6"}));
}

}  // namespace
}  // namespace troupe::actors::operations
