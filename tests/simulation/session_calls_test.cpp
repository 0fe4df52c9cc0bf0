// How a session answers a trainer that asks for the wrong thing. The order of calls itself is tried in
// tests/actors/session/call_order_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "actors/session/session.hpp"
#include "actors/session/trainer_group.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/dtype.hpp"
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

// Covers unit-35.
TEST(SessionCalls, RefuseATypeThatIsNotTheParameters) {
  in_a_lane({}, [](Session& session) {
    expect_refused(session.parameter<std::uint16_t>({0}), "wide has elements of f32; read them as float");
    expect_refused(session.parameter({1}), "narrow has elements of bf16; read them as std::uint16_t");
    expect_refused(session.parameter<double>({0}), "read them as float");
    expect_refused(session.gradient<std::uint16_t>({1}), "narrow has elements of f32; read them as float");
  });
}

// Covers layout-7.
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

/// One rank whose "wide" and "narrow" are 1 at first; `look` is called before the first step.
void before_steps(const std::function<core::Result<void>(Session&)>& look, Storage* disk = nullptr,
                  double bytes_per_second = 1e12) {
  SimulationOptions simulation;
  simulation.ranks = {1};
  simulation.storage = disk;
  simulation.device.bytes_per_second = bytes_per_second;
  auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    SessionOptions options;
    options.training.optimizer.kind = core::OptimizerKind::sgd;
    options.training.optimizer.weight_decay = 0;
    options.training.bucket_elements = 1000;
    options.groups = {{"all", {{rank.rank()}}}};
    const std::vector<core::ParameterSpec> parameters{{"few", {16}, core::DType::bf16},
                                                      {"many", {100'000}, core::DType::bf16}};
    auto session = TRY(Session::join(rank, options, parameters));
    TRY(look(*session));
    TRY(session->leave());
    return true;
  });
  EXPECT_EQ(problems_of(outcome.report), "");
}

core::Result<void> fill(Session& session, float value) {
  for (std::uint32_t p : {0u, 1u}) {
    TRY(session.write_parameter(
        {p}, [&](std::int64_t, std::span<float> values) { std::fill(values.begin(), values.end(), value); }));
  }
  return {};
}

/// A step whose gradients are 0: parameters become what the optimizer's copy of them is.
core::Result<void> step(Session& session) {
  TRY(session.begin_step(1));
  TRY(session.begin_lane({0}));
  for (std::uint32_t p : {1u, 0u}) {
    TRY(session.before_use({p}));
    TRY(session.gradient_ready({p}));
  }
  TRY(session.end_lane(0));
  TRY(session.finish_step());
  return session.publish_all();
}

core::Result<void> save(Session& session) {
  TRY(session.save());
  TRY(session.wait_saves());
  for (const auto& over : session.take_saves()) TRY(over.committed);
  return {};
}

/// A checkpoint of a session whose first values are 3, on a device of this speed.
void save_threes(SimulatedStorage& disk, double bytes_per_second = 1e12) {
  before_steps(
      [](Session& session) -> core::Result<void> {
        TRY(fill(session, 3));
        return save(session);
      },
      &disk, bytes_per_second);
}

float first_of(Session& session, std::uint32_t parameter) {
  return core::bf16_to_float(session.parameter<std::uint16_t>({parameter}).value()[0]);
}

TEST(SessionCalls, SaveFirstValuesAsWrittenHoweverSlowTheOptimizer) {
  SimulatedStorage disk({});
  save_threes(disk, 1e6);
  before_steps(
      [](Session& session) -> core::Result<void> {
        EXPECT_TRUE(TRY(session.restore()));
        TRY(step(session));
        for (std::uint32_t p : {0u, 1u}) EXPECT_EQ(first_of(session, p), 3) << p;
        return {};
      },
      &disk);
}

TEST(SessionCalls, WriteFirstValuesAfterRestoresToTheOptimizerToo) {
  SimulatedStorage disk({});
  save_threes(disk);
  before_steps(
      [](Session& session) -> core::Result<void> {
        EXPECT_TRUE(TRY(session.restore()));
        TRY(session.write_parameter({0}, [](std::int64_t, std::span<float> values) {
          std::fill(values.begin(), values.end(), 5.0F);
        }));
        TRY(step(session));
        EXPECT_EQ(first_of(session, 0), 5);
        EXPECT_EQ(first_of(session, 1), 3) << "as it was loaded";
        return {};
      },
      &disk);
}

TEST(SessionCalls, RefuseFirstValuesThatComeTooLate) {
  SimulatedStorage disk({});
  before_steps(
      [](Session& session) -> core::Result<void> {
        TRY(fill(session, 3));
        TRY(save(session));
        expect_refused(fill(session, 4),
                       "write_parameter() was called after a save of the session had begun");
        TRY(step(session));
        expect_refused(fill(session, 4),
                       "write_parameter() was called after the first step of the session had begun");
        EXPECT_EQ(first_of(session, 0), 3);
        return {};
      },
      &disk);
}

TEST(SessionCalls, TakeTheComputeStreamBeforeTheFirstStepOnly) {
  before_steps([](Session& session) -> core::Result<void> {
    TRY(fill(session, 3));
    TRY(step(session));
    expect_refused(session.compute_stream(),
                   "compute_stream() was called after the first step of the session had begun");
    return {};
  });
  before_steps([](Session& session) -> core::Result<void> {
    TRY(fill(session, 3));
    const auto stream = TRY(session.compute_stream());
    TRY(step(session));
    EXPECT_EQ(TRY(session.compute_stream()), stream) << "it is the same at any time";
    return {};
  });
}

TEST(SessionCalls, WaitForAnOperationOlderThanTheComputeStream) {
  before_steps([](Session& session) -> core::Result<void> {
    TRY(fill(session, 3));
    auto* const group = TRY(session.group("all"));
    std::vector<float> values(8, 2.0F);
    const auto first = TRY(group->all_reduce(gpu::view_of(std::span(values)), core::DType::f32));
    const auto compute = TRY(session.compute_stream());
    const auto second = TRY(group->all_reduce(gpu::view_of(std::span(values)), core::DType::f32));
    TRY(group->wait(first));
    TRY(group->wait(second));
    TRY(group->wait(first));
    float seen = 0;
    compute->enqueue("look", {}, [&] { seen = values[0]; });
    TRY(step(session));
    EXPECT_EQ(seen, 2);
    return {};
  });
}

TEST(SessionCalls, KeepEvaluationsAndStepsApart) {
  before_steps([](Session& session) -> core::Result<void> {
    TRY(fill(session, 3));
    expect_refused(session.end_evaluation(), "no evaluation has begun");
    TRY(session.begin_evaluation());
    for (const auto& called : {session.begin_step(1), session.leave(), session.begin_evaluation(),
                               session.begin_learning(), fill(session, 4)}) {
      expect_refused(called, "an evaluation has begun; call end_evaluation() first");
    }
    TRY(session.before_use({0}));
    EXPECT_EQ(first_of(session, 0), 3);
    TRY(session.end_evaluation());
    return step(session);
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
