#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "actors/planes/step/device_memory.hpp"
#include "actors/planes/step/rank_program.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "core/program/memory.hpp"
#include "tests/sharding/scripted_units.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;
using tests::ShardingMesh;

/// Which of the script's parameters are frozen: one that stays, one of a unit beside one that is trained, and
/// all of a unit.
const std::set<std::uint32_t> kFrozen = {0, 1, 3};

Script frozen_script(const ShardingMesh& mesh) {
  auto script = tests::unit_script(mesh);
  for (const auto p : kFrozen) script.parameters[p].trainable = false;
  script.parameters[1].dtype = core::DType::bf16;
  return script;
}

class FrozenParameters : public testing::TestWithParam<ShardingMesh> {};

/// The gradients of each parameter depend on its number, so those of the script without frozen ones follow
/// from the numbers that are left.
// Covers shard-8.
TEST_P(FrozenParameters, StayAndTheRestTrainsAsWithoutThem) {
  auto script = frozen_script(GetParam());
  script.session.training.clip_norm = 0.5;
  Script rest = tests::unit_script({core::Strategy::ddp, 1, 1});
  rest.session.training.clip_norm = 0.5;
  std::erase_if(rest.parameters, [](const auto& spec) { return spec.name != "b" && spec.name != "d"; });
  const auto number = [](std::uint32_t p) { return p == 0 ? 2U : 4U; };
  rest.initial = [number, initial = script.initial](std::uint32_t p, std::size_t i) {
    return initial(number(p), i);
  };
  rest.gradient = [number, gradient = script.gradient](GradientPlace place) {
    place.parameter = number(place.parameter);
    return gradient(place);
  };
  const auto expected = tests::run({core::Strategy::ddp, 1, 1}, rest);
  ASSERT_EQ(problems_of(expected.report), "");

  const auto outcome = tests::run(GetParam(), script);

  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) {
    for (std::size_t step = 0; step < 4; ++step) {
      const auto& after = rank.after[step];
      const auto& wanted = expected.ranks[0].after[step];
      EXPECT_EQ(after[2], wanted[0]) << step;
      EXPECT_EQ(after[4], wanted[1]) << step;
      for (const auto p : kFrozen) {
        for (std::size_t i = 0; i < after[p].size(); ++i)
          ASSERT_EQ(after[p][i], rounded(script.parameters[p].dtype, script.initial(p, i)));
      }
      EXPECT_EQ(rank.outcomes[step].gradient_norm, expected.ranks[0].outcomes[step].gradient_norm);
    }
  }
}

// Covers state-2.
TEST_P(FrozenParameters, AreThoseOfACheckpointOfAnyStrategy) {
  const ShardingMesh other{core::Strategy::zero3, 1, 3};
  for (const auto& [from, to] : {std::pair(GetParam(), other), {other, GetParam()}}) {
    SimulatedStorage disk({});
    auto saving = frozen_script(from);
    saving.steps = saving.save_after = 2;
    ASSERT_EQ(problems_of(tests::run(from, saving, &disk).report), "");
    auto going_on = frozen_script(to);
    going_on.restore = true;

    const auto outcome = tests::run(to, going_on, &disk);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected_values(going_on));
  }
}

// Covers unit-26.
TEST_P(FrozenParameters, TakeNoMemoryButTheirOwn) {
  const auto memory_of = [](const Script& script) {
    const auto plan = plan_training(script.parameters, script.session.training, {GetParam().ranks()}).value();
    return core::memory_of(RankProgram(plan, {0}).program());
  };
  auto whole = tests::unit_script(GetParam());
  auto frozen = whole;
  for (const auto p : kFrozen) frozen.parameters[p].trainable = false;
  auto rest = whole;
  std::erase_if(rest.parameters, [](const auto& spec) { return spec.name != "b" && spec.name != "d"; });
  for (std::uint32_t p = 0; p < 2; ++p) rest.parameters[p].unit = core::UnitIndex{p};

  const auto with = memory_of(frozen), without = memory_of(rest), all = memory_of(whole);

  EXPECT_EQ(with.gradients, without.gradients);
  EXPECT_EQ(with.optimizer, without.optimizer);
  EXPECT_EQ(with.gradient_pool, without.gradient_pool);
  EXPECT_GT(with.parameters, without.parameters);
  EXPECT_LT(with.optimizer, all.optimizer);
}

INSTANTIATE_TEST_SUITE_P(Strategies, FrozenParameters, testing::ValuesIn(tests::some_meshes()),
                         [](const auto& each) { return each.param.name(); });

// Covers shard-8.
TEST(FrozenParameter, HasNoGradientThatATrainerCouldAskFor) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    const auto script = frozen_script({core::Strategy::zero3, 1, 2});
    auto session = TRY(Session::join(rank, script.session, script.parameters));
    TRY(session->begin_step(0));
    TRY(session->begin_lane(session->lanes()[0]));
    TRY(session->before_use({1}));
    EXPECT_TRUE(session->parameter<std::uint16_t>({1}));
    const auto expect_refused = [](const auto& called) {
      ASSERT_FALSE(called);
      EXPECT_EQ(called.error().code, core::Errc::invalid_argument);
      EXPECT_THAT(called.error().message, HasSubstr("a is frozen and has no gradient"));
    };
    expect_refused(session->gradient<std::uint16_t>({1}));
    expect_refused(session->gradient_memory({1}));
    expect_refused(session->gradient_ready({1}));
    EXPECT_TRUE(session->gradient({2}));
    return true;
  });
  EXPECT_EQ(problems_of(outcome.report), "");
}

TEST(FrozenParameter, IsNotTheOnlyOne) {
  auto script = frozen_script({core::Strategy::zero1, 1, 2});
  for (auto& parameter : script.parameters) parameter.trainable = false;

  const auto plan = plan_training(script.parameters, script.session.training, {2});

  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().message, HasSubstr("all 5 parameters are frozen; a job trains at least one"));
}

/// A rank that froze another parameter than the others would reduce other gradients.
TEST(FrozenParameter, IsFrozenOnAllRanks) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto script = tests::unit_script({core::Strategy::ddp, 1, 2});
    script.parameters[2].trainable = rank.rank().value == 0;
    TRY(Session::join(rank, script.session, script.parameters));
    return true;
  });
  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, core::Errc::mismatch) << result.error().message;
  }
}

}  // namespace
}  // namespace troupe::actors
