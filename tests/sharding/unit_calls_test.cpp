#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>

#include "actors/session/session.hpp"
#include "core/errors.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;

template <class T>
void expect_refused(const core::Result<T>& called, core::Errc code, const std::string& why) {
  ASSERT_FALSE(called) << why;
  EXPECT_EQ(called.error().code, code);
  EXPECT_THAT(called.error().message, HasSubstr(why));
}

/// Three units of one parameter each, on two ranks; `look` is called in the first lane of the first step.
void in_a_lane(core::Strategy strategy, const std::function<void(Session&)>& look,
               const core::DeclaredOrder& order = {}) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    SessionOptions options;
    options.training.strategy = strategy;
    options.order = order;
    std::vector<core::ParameterSpec> parameters{{"a", {100}}, {"b", {100}}, {"c", {100}}};
    for (std::uint32_t p = 0; p < 3; ++p) parameters[p].unit = core::UnitIndex{p};
    auto session = TRY(Session::join(rank, options, parameters));
    for (std::uint32_t p = 0; p < 3; ++p) {
      TRY(session->write_parameter({p}, [&](std::int64_t first, std::span<float> values) {
        for (float& value : values) value = static_cast<float>(1000 * p) + static_cast<float>(first++);
      }));
    }
    TRY(session->begin_step(0));
    TRY(session->begin_lane(session->lanes()[0]));
    look(*session);
    rank.compute(std::chrono::milliseconds(100));  // the other rank gets here, too, before this one ends
    return true;
  });
  EXPECT_EQ(violations_of(outcome.report), "");
  for (const auto& result : outcome.report.results) EXPECT_TRUE(result) << result.error().message;
}

TEST(UnitCalls, GiveEveryRankTheWholeParameterWhileAcquired) {
  in_a_lane(core::Strategy::zero3, [](Session& session) {
    for (std::uint32_t u = 0; u < 3; ++u) {
      ASSERT_TRUE(session.acquire({u}));
      const auto values = session.parameter({u}).value();
      ASSERT_EQ(values.size(), 100U);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], static_cast<float>(1000 * u) + static_cast<float>(i));
      }
    }
  });
}

// Covers unit-12.
TEST(UnitCalls, RefuseWhatIsReadOutsideOfItsUnit) {
  in_a_lane(core::Strategy::zero3, [](Session& session) {
    expect_refused(session.parameter({1}), core::Errc::unavailable,
                   "b is in unit 1, whose parameters are not gathered; call acquire(1)");
    ASSERT_TRUE(session.acquire({1}));
    EXPECT_TRUE(session.parameter({1}));
    expect_refused(session.parameter({0}), core::Errc::unavailable, "a is in unit 0");
    ASSERT_TRUE(session.release({1}));
    expect_refused(session.parameter({1}), core::Errc::unavailable, "call acquire(1)");
  });
}

// Covers unit-33.
TEST(UnitCalls, MakeReleasedMemoryNotANumberInTheSimulator) {
  in_a_lane(core::Strategy::zero3, [](Session& session) {
    ASSERT_TRUE(session.acquire({0}));
    const auto kept = session.parameter({0}).value();
    EXPECT_EQ(kept[7], 7.0F);
    ASSERT_TRUE(session.release({0}));
    EXPECT_TRUE(std::isnan(kept[7])) << "what is read too late is seen";
  });
}

// Covers unit-12.
TEST(UnitCalls, RefuseUnitsOutOfForwardAndBackwardOrder) {
  in_a_lane(core::Strategy::zero3, [](Session& session) {
    ASSERT_TRUE(session.acquire({0}));
    ASSERT_TRUE(session.acquire({0})) << "again is the same";
    ASSERT_TRUE(session.acquire({2})) << "a unit that is not used is passed over";
    expect_refused(session.acquire({1}), core::Errc::invalid_argument,
                   "unit 1 is done in forward: units are acquired in the order of forward");
    expect_refused(session.release({1}), core::Errc::invalid_argument, "it was not acquired");
    expect_refused(session.acquire({3}), core::Errc::invalid_argument,
                   "there is no unit 3: parameters name 3, numbered from 0");
    ASSERT_TRUE(session.begin_backward());
    ASSERT_TRUE(session.acquire({2}));
    ASSERT_TRUE(session.acquire({1}));
    expect_refused(session.acquire({2}), core::Errc::invalid_argument, "unit 2 is done in backward");
  });
}

// Covers unit-12.
TEST(UnitCalls, RefuseUnitsOutOfADeclaredOrderByName) {
  const core::DeclaredOrder order{{{2}, {0}, {1}}, {{0}, {2}, {1}}};
  const auto look = [](Session& session) {
    ASSERT_TRUE(session.acquire({2}));
    EXPECT_EQ(session.parameter({2}).value()[3], 2003.0F);
    ASSERT_TRUE(session.acquire({0}));
    EXPECT_EQ(session.parameter({0}).value()[3], 3.0F);
    expect_refused(
        session.acquire({2}), core::Errc::invalid_argument,
        "unit 2 is done in forward: the order of units does not have it after unit 0, which was reached");
    ASSERT_TRUE(session.acquire({1}));
    ASSERT_TRUE(session.release({1}));
    expect_refused(session.acquire({0}), core::Errc::invalid_argument,
                   "unit 0 is done in forward: the order of units does not have it after unit 1");
    ASSERT_TRUE(session.begin_backward());
    ASSERT_TRUE(session.acquire({0}));
    EXPECT_EQ(session.parameter({0}).value()[3], 3.0F);
    ASSERT_TRUE(session.acquire({1})) << "a unit that is not used is passed over";
    expect_refused(session.acquire({2}), core::Errc::invalid_argument,
                   "unit 2 is done in backward: the order of units does not have it after unit 1");
  };

  in_a_lane(core::Strategy::zero3, look, order);
}

// Covers unit-12.
TEST(UnitCalls, AreNotNeededWhereEveryRankKeepsAllParameters) {
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    in_a_lane(strategy, [](Session& session) {
      EXPECT_EQ(session.units(), 0U);
      EXPECT_TRUE(session.before_use({1}));
      EXPECT_EQ(session.parameter({1}).value()[3], 1003.0F);
      EXPECT_TRUE(session.acquire({2}));
      EXPECT_TRUE(session.acquire({1})) << "in any order";
      EXPECT_TRUE(session.release({1}));
      EXPECT_EQ(session.parameter({1}).value()[3], 1003.0F);
      EXPECT_TRUE(session.begin_backward());
      EXPECT_TRUE(session.acquire({1}));
      expect_refused(session.acquire({9}), core::Errc::invalid_argument,
                     "there is no unit 9: no parameter names it");
    });
  }
}

TEST(UnitCalls, RefuseGradientsOfUnitsNotAcquiredInBackward) {
  for (const auto strategy : {core::Strategy::zero2, core::Strategy::zero3}) {
    in_a_lane(strategy, [](Session& session) {
      ASSERT_TRUE(session.acquire({2}));
      EXPECT_TRUE(session.gradient({2})) << "only where it is";
      expect_refused(
          session.gradient_ready({2}), core::Errc::invalid_argument,
          "c is in unit 2, whose gradients are written only while it is acquired in backward; call "
          "begin_backward(), then acquire(2) before adding to them");
      ASSERT_TRUE(session.begin_backward());
      expect_refused(session.gradient_ready({2}), core::Errc::invalid_argument,
                     "backward; call acquire(2) before");
      ASSERT_TRUE(session.acquire({2}));
      EXPECT_TRUE(session.gradient_ready({2}));
      expect_refused(
          session.gradient_ready({1}), core::Errc::invalid_argument,
          "b is in unit 1, whose gradients are written only while it is acquired in backward; call "
          "acquire(1)");
      ASSERT_TRUE(session.release({2}));
      expect_refused(session.gradient_ready({2}), core::Errc::invalid_argument, "call acquire(2)");
    });
  }
}

TEST(UnitCalls, GatherForAnEvaluationAsOftenAsWanted) {
  SimulationOptions simulation;
  simulation.ranks = {3};
  const auto outcome = simulate_job<float>(simulation, [&](SimulatedRank& rank) -> core::Result<float> {
    TinyTrainerOptions options;
    options.session.training.strategy = core::Strategy::zero3;
    auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
    for (std::uint32_t p = 0; p < 8; ++p) {
      TRY(session->write_parameter({p}, [](std::int64_t, std::span<float> values) {
        for (float& value : values) value = 1;
      }));
    }
    float sum = 0;
    TRY(session->begin_evaluation());
    for (int pass = 0; pass < 3; ++pass) {
      for (std::uint32_t p = 0; p < 8; ++p) {
        TRY(session->before_use({p}));
        for (const float value : TRY(session->parameter({p}))) sum += value;
      }
    }
    TRY(session->end_evaluation());
    TRY(session->leave());
    return sum;
  });
  EXPECT_EQ(violations_of(outcome.report), "");
  for (const float sum : outcome.ranks) EXPECT_EQ(sum, 3 * 4 * (24 + 9));
}

}  // namespace
}  // namespace troupe::actors
