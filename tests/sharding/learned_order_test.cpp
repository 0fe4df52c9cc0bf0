#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "actors/session/session.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::DeclaredOrder;
using core::Strategy;
using testing::HasSubstr;
using Called = core::Result<void>;

SessionOptions options_of(Strategy strategy) {
  SessionOptions options;
  options.training.strategy = strategy;
  return options;
}

/// Calls `trainer` on each of two ranks, once there are values: of three units of one parameter each, and of
/// one outside of units, which a list of passes has no place for.
std::vector<Called> on_two_ranks(const SessionOptions& options,
                                 const std::function<Called(Session&)>& trainer) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    std::vector<core::ParameterSpec> parameters{{"a", {100}}, {"b", {100}}, {"c", {100}}, {"outside", {100}}};
    for (std::uint32_t p = 0; p < 3; ++p) parameters[p].unit = core::UnitIndex{p};
    if (!options.passes.empty()) parameters.pop_back();
    auto session = TRY(Session::join(rank, options, parameters));
    for (std::uint32_t p = 0; p < parameters.size(); ++p) {
      TRY(session->write_parameter({p}, [&](std::int64_t, std::span<float> values) {
        for (float& value : values) value = static_cast<float>(p);
      }));
    }
    TRY(trainer(*session));
    core::disregard(session->leave(), "some end in the middle of a step");
    return true;
  });
  EXPECT_EQ(violations_of(outcome.report), "");
  return outcome.report.results;
}

void expect_all_well(const std::vector<Called>& results) {
  for (const auto& result : results) EXPECT_TRUE(result) << result.error().message;
}

/// Reads parameters and adds to their gradients what a step must not see.
Called use(Session& session, const std::vector<std::uint32_t>& parameters, bool backward) {
  for (const auto p : parameters) {
    TRY(session.before_use({p}));
    EXPECT_EQ(TRY(session.parameter({p}))[5], static_cast<float>(p));
    if (!backward) continue;
    TRY(session.gradient({p}))[5] += 1000;
    TRY(session.gradient_ready({p}));
  }
  return {};
}

core::Result<DeclaredOrder> learn(Session& session, const std::vector<std::uint32_t>& forward,
                                  const std::vector<std::uint32_t>& backward) {
  TRY(session.begin_learning());
  TRY(session.begin_microbatch(0));
  TRY(use(session, forward, false));
  TRY(session.begin_backward());
  TRY(use(session, backward, true));
  return session.end_learning();
}

TEST(LearnedOrder, IsTheTrainersWithUnusedUnitsBehind) {
  expect_all_well(on_two_ranks(options_of(Strategy::zero3), [](Session& session) -> Called {
    EXPECT_EQ(TRY(learn(session, {2, 0}, {0, 2})), (DeclaredOrder{{{2}, {0}, {1}}, {{0}, {2}, {1}}}));
    EXPECT_EQ(TRY(learn(session, {1, 2, 0}, {0, 2, 1})), (DeclaredOrder{{{1}, {2}, {0}}, {{0}, {2}, {1}}}))
        << "it may be learned again";
    TRY(session.begin_step(0));
    TRY(session.begin_lane(session.lanes()[0]));
    for (const std::uint32_t unit : {1U, 2U, 0U}) TRY(session.acquire({unit}));
    EXPECT_THAT(session.acquire({1}).error().message, HasSubstr("acquire units as they were declared or"));
    return {};
  }));
}

TEST(LearnedOrder, ThatIsUsualReplacesADeclaredOne) {
  auto options = options_of(Strategy::zero3);
  options.order.forward = {{2}, {0}, {1}};
  expect_all_well(on_two_ranks(options, [](Session& session) -> Called {
    TRY(learn(session, {0, 1, 2}, {2, 1, 0}));
    TRY(session.begin_step(0));
    TRY(session.begin_lane(session.lanes()[0]));
    for (const std::uint32_t unit : {0U, 1U, 2U}) TRY(session.acquire({unit}));
    TRY(session.begin_backward());
    for (const std::uint32_t unit : {2U, 1U, 0U}) TRY(session.acquire({unit}));
    return {};
  }));
}

TEST(LearnedOrder, LeavesNothingInGradients) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    auto options = options_of(strategy);
    options.training.optimizer.kind = core::OptimizerKind::sgd;
    expect_all_well(on_two_ranks(options, [](Session& session) -> Called {
      TRY(learn(session, {3, 1, 2, 0}, {2, 0, 1, 3}));
      TRY(session.begin_step(1));
      for (const auto lane : session.lanes()) {
        TRY(session.begin_lane(lane));
        TRY(use(session, {3, 1, 2, 0}, false));
        TRY(session.begin_backward());
        for (const std::uint32_t parameter : {2U, 0U, 1U, 3U}) {
          TRY(session.before_use({parameter}));
          for (const float value : TRY(session.gradient({parameter}))) EXPECT_EQ(value, 0.0F);
          TRY(session.gradient_ready({parameter}));
        }
        TRY(session.end_lane(0));
      }
      EXPECT_EQ(TRY(session.finish_step()).gradient_norm, 0.0);
      return {};
    }));
  }
}

TEST(LearnedOrder, IsNothingWhereEveryRankKeepsAllParameters) {
  expect_all_well(on_two_ranks(options_of(Strategy::zero1), [](Session& session) -> Called {
    EXPECT_TRUE(TRY(learn(session, {2, 1, 0}, {1, 0, 2})).empty());
    return {};
  }));
}

TEST(LearnedOrder, HasEachUnitOnceEachWay) {
  expect_all_well(on_two_ranks(options_of(Strategy::zero3), [](Session& session) -> Called {
    TRY(session.begin_learning());
    for (const std::uint32_t unit : {1U, 0U}) TRY(session.acquire({unit}));
    const auto again = session.acquire({1});
    EXPECT_EQ(again.error().code, core::Errc::invalid_argument);
    EXPECT_THAT(again.error().message,
                HasSubstr("unit 1 is used again in forward: a step uses each unit once"));
    TRY(session.acquire({2}));
    TRY(session.begin_backward());
    for (const std::uint32_t unit : {1U, 0U, 2U}) TRY(session.acquire({unit}));
    EXPECT_EQ(TRY(session.end_learning()), (DeclaredOrder{{{1}, {0}, {2}}, {{1}, {0}, {2}}}));
    return {};
  }));
}

// Covers unit-12.
TEST(LearnedOrder, DifferingAmongRanksEndsTheJobNamingTheUnit) {
  const auto ends = [](const std::vector<std::uint32_t>& forward,
                       const std::vector<std::uint32_t>& backward) {
    const auto results = on_two_ranks(options_of(Strategy::zero3), [&](Session& session) -> Called {
      const bool is_first = session.rank().value == 0;
      using Units = std::vector<std::uint32_t>;
      TRY(learn(session, is_first ? Units{2, 0, 1} : forward, is_first ? Units{1, 0, 2} : backward));
      TRY(session.begin_step(0));
      TRY(session.begin_lane(session.lanes()[0]));
      TRY(session.acquire({2}));
      TRY(session.acquire({0}));
      return session.acquire({1});
    });
    for (const auto& result : results) {
      EXPECT_FALSE(result);
      EXPECT_EQ(result.error().message, results[1].error().message);
    }
    EXPECT_EQ(results[1].error().code, core::Errc::mismatch);
    return results[1].error().message;
  };

  EXPECT_THAT(ends({2, 1, 0}, {1, 0, 2}),
              HasSubstr("rank 1 comes to forward of unit 1 where rank 0 comes to forward of unit 0"));
  EXPECT_THAT(ends({2, 0, 1}, {1, 2, 0}),
              HasSubstr("rank 1 comes to backward of unit 2 where rank 0 comes to backward of unit 0"));
  EXPECT_THAT(ends({2, 0}, {1, 0, 2}),
              HasSubstr("rank 1 comes to begin_backward() where rank 0 comes to forward of unit 1"));
  EXPECT_THAT(ends({2, 0, 1}, {1, 0}),
              HasSubstr("rank 1 comes to end_learning() where rank 0 comes to backward of unit 2"));
}

TEST(LearnedOrder, IsRefusedOutOfTurn) {
  expect_all_well(on_two_ranks(options_of(Strategy::zero3), [](Session& session) -> Called {
    EXPECT_THAT(session.end_learning().error().message, HasSubstr("end_learning() was called out of turn"));
    TRY(session.begin_learning());
    for (const auto& called : {session.begin_step(0), session.begin_lane(session.lanes()[0]),
                               session.end_lane(0), session.begin_learning(), session.begin_evaluation()}) {
      EXPECT_EQ(called.error().code, core::Errc::invalid_argument);
      EXPECT_THAT(called.error().message,
                  HasSubstr("the order of units is being learned, from one forward and one backward; call "
                            "end_learning()"));
    }
    TRY(session.end_learning());
    TRY(session.begin_step(0));
    EXPECT_THAT(session.begin_learning().error().message, HasSubstr("out of turn"));
    for (const auto lane : session.lanes()) {
      TRY(session.begin_lane(lane));
      TRY(use(session, {3, 0, 1, 2}, false));
      TRY(session.begin_backward());
      TRY(use(session, {2, 1, 0, 3}, true));
      TRY(session.end_lane(0));
    }
    TRY(session.finish_step());
    EXPECT_THAT(
        session.begin_learning().error().message,
        HasSubstr("begin_learning() was called after step 0; the order of units is learned before the "
                  "first step"));
    return {};
  }));
}

TEST(LearnedOrder, IsRefusedBesideAListOfPasses) {
  auto options = options_of(Strategy::zero3);
  options.passes = {{core::Pass::forward, 0, 0, 3}, {core::Pass::backward, 0, 0, 3}};
  expect_all_well(on_two_ranks(options, [](Session& session) -> Called {
    EXPECT_THAT(session.begin_learning().error().message, HasSubstr("SessionOptions::passes"));
    return {};
  }));
}

}  // namespace
}  // namespace troupe::actors
