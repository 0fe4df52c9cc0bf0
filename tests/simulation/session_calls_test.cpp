// How a session answers a trainer that asks for the wrong thing. The order of calls itself is tried in
// tests/actors/session/call_order_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "actors/session/session.hpp"
#include "core/errors.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;

template <class T>
void expect_refused(const core::Result<T>& called, const std::string& why) {
  ASSERT_FALSE(called) << why;
  EXPECT_EQ(called.error().code, core::Errc::invalid_argument);
  EXPECT_THAT(called.error().message, HasSubstr(why));
}

/// One rank with a parameter of each kind of dtype, in the first lane of its first step.
void in_a_lane(const core::TrainingOptions& training, const std::function<void(Session&)>& look) {
  SimulationOptions simulation;
  simulation.ranks = {1};
  auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    SessionOptions options;
    options.training = training;
    auto session = TRY(Session::join(rank, options, {{"wide", {4}}, {"narrow", {6}, core::DType::bf16}}));
    TRY(session->begin_step(0.1));
    TRY(session->begin_lane({0}));
    for (std::uint32_t p : {0u, 1u}) TRY(session->before_use({p}));
    look(*session);
    for (std::uint32_t p : {1u, 0u}) TRY(session->gradient_ready({p}));
    TRY(session->end_lane(0));
    TRY(session->finish_step());
    TRY(session->leave());
    return true;
  });
  EXPECT_EQ(problems_of(outcome.report), "");
  EXPECT_TRUE(outcome.ranks[0]);
}

TEST(SessionCalls, GiveMemoryAsTheTypeOfItsElements) {
  in_a_lane({}, [](Session& session) {
    EXPECT_EQ(session.parameter({0}).value().size(), 4u);
    EXPECT_EQ(session.parameter<std::uint16_t>({1}).value().size(), 6u);
    EXPECT_EQ(session.parameter<std::byte>({1}).value().size(), 12u);
    EXPECT_EQ(session.gradient({1}).value().size(), 6u) << "gradients are f32";
    EXPECT_EQ(session.gradient_memory({1}).value().bytes, 24u);
  });
}

TEST(SessionCalls, RefuseATypeThatIsNotTheParameters) {
  in_a_lane({}, [](Session& session) {
    expect_refused(session.parameter<std::uint16_t>({0}), "wide has elements of f32; read them as float");
    expect_refused(session.parameter({1}), "narrow has elements of bf16; read them as std::uint16_t");
    expect_refused(session.parameter<double>({0}), "read them as float");
    expect_refused(session.gradient<std::uint16_t>({1}), "narrow has elements of f32; read them as float");
  });
}

TEST(SessionCalls, KnowTheDtypeOfNarrowGradients) {
  core::TrainingOptions training;
  training.numerics = core::Numerics::fast;
  training.gradients_in_parameter_dtype = true;
  in_a_lane(training, [](Session& session) {
    EXPECT_EQ(session.gradient<std::uint16_t>({1}).value().size(), 6u);
    expect_refused(session.gradient({1}), "narrow has elements of bf16");
  });
}

TEST(SessionCalls, RefuseAParameterThatThereIsNot) {
  in_a_lane({}, [](Session& session) {
    const std::string why = "there is no parameter 2: the session has 2, numbered from 0";
    expect_refused(session.parameter({2}), why);
    expect_refused(session.gradient_memory({2}), why);
    expect_refused(session.before_use({2}), why);
    expect_refused(session.gradient_ready({2}), why);
  });
}

TEST(SessionCalls, SayWhatTheSessionWasGiven) {
  in_a_lane({}, [](Session& session) {
    ASSERT_EQ(session.parameters().size(), 2u);
    EXPECT_EQ(session.parameters()[1].name, "narrow");
    EXPECT_EQ(session.training().lanes, 1) << "filled in";
  });
}

TEST(SessionCalls, OutOfTurnChangeNothing) {
  in_a_lane({}, [](Session& session) {
    expect_refused(session.begin_step(0.1), "begin_step() was called out of turn");
    expect_refused(session.begin_lane({0}), "lane 0 has begun; call end_lane() first");
    expect_refused(session.finish_step(), "finish_step() was called out of turn");
    expect_refused(session.restore(), "restore() was called out of turn");
    expect_refused(session.leave(), "leave() was called out of turn");
  });
}

}  // namespace
}  // namespace troupe::actors
