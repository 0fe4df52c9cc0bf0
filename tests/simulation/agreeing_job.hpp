#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/session.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "tests/simulation/simulated_job.hpp"

/// A job whose ranks may be given other things each.
namespace troupe::actors::agreeing {

inline constexpr int kRanks = 3;

/// A step whose gradients are 1.
inline core::Result<StepOutcome> step(Session& session, double rate = 0.5) {
  TRY(session.begin_step(rate));
  const auto count = session.parameters().size();
  for (const core::Lane lane : session.lanes()) {
    TRY(session.begin_lane(lane));
    for (const auto index : core::indices<core::ParameterIndex>(count)) TRY(session.before_use(index));
    TRY(session.begin_backward());
    for (auto index = static_cast<std::uint32_t>(count); index-- > 0;) {
      TRY(session.before_use({index}));
      for (auto& element : TRY(session.gradient({index}))) element += 1;
      TRY(session.gradient_ready({index}));
    }
    TRY(session.end_lane(0));
  }
  return session.finish_step();
}

struct Job {
  core::Strategy strategy = core::Strategy::zero1;
  std::vector<core::ParameterSpec> parameters{{"a", {40}}, {"b", {20}}};
  std::function<void(SessionOptions&, core::Rank)> options = [](SessionOptions&, core::Rank) {};
  std::function<float(core::Rank, std::uint32_t parameter, std::int64_t element)> initial =
      [](auto, auto, auto) { return 0.0F; };
};

inline core::Result<std::unique_ptr<Session>> join_job(SimulatedRank& rank, const Job& job) {
  SessionOptions options;
  options.training.strategy = job.strategy;
  options.training.lanes = kRanks;
  options.training.bucket_elements = 30;
  options.training.optimizer.kind = core::OptimizerKind::sgd;
  options.step_deadline = std::chrono::minutes(5);
  job.options(options, rank.rank());
  auto session = TRY(Session::join(rank, options, job.parameters));
  for (const auto index : core::indices<core::ParameterIndex>(job.parameters.size())) {
    TRY(session->write_parameter(index, [&](std::int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = job.initial(rank.rank(), index.value, first + static_cast<std::int64_t>(i));
    }));
  }
  return session;
}

using Course = std::function<core::Result<void>(SimulatedRank&, Session&)>;

inline JobOutcome<bool> simulate(const Job& job, const Course& course, Storage* disk = nullptr) {
  SimulationOptions simulation;
  simulation.ranks = {kRanks};
  simulation.storage = disk;
  return simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto session = TRY(join_job(rank, job));
    TRY(course(rank, *session));
    return true;
  });
}

/// Every rank ended with this text, in less than `within`.
inline void expect_on_all(const JobOutcome<bool>& outcome, core::Errc code, const std::string& text,
                          std::chrono::nanoseconds within = std::chrono::seconds(20)) {
  EXPECT_EQ(violations_of(outcome.report), "");
  EXPECT_LT(outcome.report.virtual_time, within);
  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_THAT(result.error().message, testing::HasSubstr(text));
  }
}

}  // namespace troupe::actors::agreeing
