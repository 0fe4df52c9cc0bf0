#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/shell/rank_world.hpp"
#include "actors/simulation/faults.hpp"
#include "actors/simulation/tiny_trainer.hpp"
#include "core/errors.hpp"
#include "core/plan/terms.hpp"
#include "core/step_count.hpp"
#include "tests/support/environment.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Kind = JobFault::Kind;

/// What a job that trains the tiny model leaves behind.
struct Trained {
  SimulatedJobReport report;
  std::uint64_t state_hash = 0;     ///< as the last rank said that came to the end
  std::vector<std::int64_t> taken;  ///< steps, as rank 0 took them
};

TinyTrainerOptions options_for(core::Strategy strategy) {
  TinyTrainerOptions options;
  options.session.training.lanes = 4;
  options.session.training.strategy = strategy;
  options.session.training.optimizer_instances =
      strategy == core::Strategy::hsdp || strategy == core::Strategy::hfsdp ? 2 : 1;
  options.steps = 40;
  options.save_every = 5;
  options.layer_time = milliseconds(2);
  options.recovers = options.restore = true;
  return options;
}

Trained run(SimulatedJobOptions job, const TinyTrainerOptions& wanted) {
  Trained trained;
  trained.report = simulate_job(job, [&](RankWorld& world) -> core::Result<void> {
    auto options = wanted;
    auto& instances = options.session.training.optimizer_instances;
    if (world.world_size().value % 2 != 0) instances = 1;
    const auto result = TRY(train_tiny(world, options, [&](auto time) { compute_for(world, time); }));
    trained.state_hash = result.state_hash;
    if (world.rank().value != 0) return {};
    for (const auto& outcome : result.outcomes) trained.taken.push_back(outcome.step.value);
    return {};
  });
  return trained;
}

class JobsUnderFaults : public testing::TestWithParam<core::Strategy> {};

/// More of them take TROUPE_JOBS_UNDER_FAULTS=1000.
TEST_P(JobsUnderFaults, HaveTheBitsOfAnUndisturbedOne) {
  const auto options = options_for(GetParam());
  const auto undisturbed = run({.ranks = 1}, options_for(core::Strategy::ddp)).state_hash;
  std::map<Kind, int> met;
  const auto seeds = tests::number_in_environment("TROUPE_JOBS_UNDER_FAULTS", 15);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SimulatedJobOptions job{.ranks = 4, .seed = seed, .drawn_faults = 5};
    job.fewest_ranks = seed % 2 == 0 ? 0 : 1;
    job.stays = seed % 5 != 0;

    const auto trained = run(job, options);

    ASSERT_TRUE(trained.report.end) << seed << "\n" << testing::PrintToString(trained.report.log);
    ASSERT_EQ(trained.state_hash, undisturbed) << seed << "\n" << testing::PrintToString(trained.report.log);
    for (const auto& fault : trained.report.faults) ++met[fault.kind];
  }
  for (const auto kind : {Kind::kill, Kind::hang, Kind::slow, Kind::power})
    EXPECT_GT(met[kind], 0) << static_cast<int>(kind);
}

INSTANTIATE_TEST_SUITE_P(EveryStrategy, JobsUnderFaults,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero2,
                                         core::Strategy::zero3, core::Strategy::hsdp, core::Strategy::hfsdp),
                         [](const auto& strategy) { return std::string(core::name_of(strategy.param)); });

TEST(JobUnderFaults, TakesNoStepTwiceWhereTheStateIsReplicated) {
  auto options = options_for(core::Strategy::ddp);
  options.save_every = 0;

  const auto trained = run({.ranks = 3, .faults = {{Kind::kill, {2}, milliseconds(200)}}}, options);

  EXPECT_TRUE(trained.report.end);
  EXPECT_EQ(trained.report.epochs, 2);
  EXPECT_GT(trained.taken.front(), 0) << "the job did not begin again";
}

TEST(JobUnderFaults, HearsOfTheLastStepThoughEpochsDecideNothing) {
  auto options = options_for(core::Strategy::ddp);
  options.save_every = 0;
  SimulatedJobOptions job{.ranks = 3};
  for (const auto at : {200, 3'000, 6'000}) job.faults.push_back({Kind::kill, {0}, milliseconds(at)});
  std::map<std::int64_t, std::int64_t> told;  // by rank: the last step, as the last epoch began

  const auto report = simulate_job(job, [&](RankWorld& world) -> core::Result<void> {
    const auto epoch = world.epoch().value;
    const auto slow = [&](auto time) {
      compute_for(world, epoch == 2 || epoch == 3 ? std::chrono::nanoseconds(milliseconds(500)) : time);
    };
    const auto result = TRY(train_tiny(world, options, slow));
    const auto& restored = result.restored;
    if (restored && restored->last &&
        core::next_step(core::steps_through(restored->last->step)) == restored->step)
      told[world.rank().value] = restored->step.value;
    return {};
  });

  EXPECT_TRUE(report.end) << testing::PrintToString(report.log);
  EXPECT_EQ(report.epochs, 4);
  ASSERT_EQ(told.size(), 3u) << "every rank was told";
  EXPECT_GT(told[0], 0);
}

TEST(JobUnderFaults, TakesOthersInFromMemoryWhereverTheStateIs) {
  for (const auto strategy : {core::Strategy::zero1, core::Strategy::zero3}) {
    auto options = options_for(strategy);
    options.save_every = 20;
    SimulatedJobOptions job{.ranks = 3, .fewest_ranks = 1};
    job.faults = {{Kind::kill, {2}, milliseconds(300)}, {Kind::join, {}, milliseconds(600)}};

    const auto trained = run(job, options);

    EXPECT_TRUE(trained.report.end);
    EXPECT_EQ(trained.report.epochs, 3) << testing::PrintToString(trained.report.log);
    EXPECT_EQ(trained.report.faults.size(), 2u);
    EXPECT_NE(trained.taken.front() % 20, 0) << "it went on at a step that was not saved";
  }
}

TEST(JobUnderFaults, ShowsATrainerWhoseDataDependsOnRestarts) {
  const auto options = options_for(core::Strategy::ddp);
  const auto state_after = [&](std::vector<JobFault> faults) {
    SimulatedJobOptions job;
    job.faults = std::move(faults);
    std::uint64_t hash = 0;
    const auto report = simulate_job(job, [&](RankWorld& world) -> core::Result<void> {
      auto careless = options;
      careless.seed = world.epoch().value;
      hash = TRY(train_tiny(world, careless, [&](auto time) { compute_for(world, time); })).state_hash;
      return {};
    });
    EXPECT_TRUE(report.end);
    return hash;
  };

  EXPECT_NE(state_after({}), state_after({{Kind::kill, {1}, milliseconds(200)}}));
}

TEST(JobUnderFaults, EndsWithAnErrorThatNoLossExplains) {
  const auto report = simulate_job({.ranks = 2}, [](RankWorld&) -> core::Result<void> {
    return core::fail(core::Errc::invalid_argument, "no data");
  });

  ASSERT_FALSE(report.end);
  EXPECT_EQ(report.end.error().message, "rank 0: no data");
  EXPECT_EQ(report.epochs, 1);
}

TEST(JobUnderFaults, RefusesOptionsThatCannotBe) {
  const auto refused = [](const SimulatedJobOptions& options) {
    const auto report = simulate_job(options, [](RankWorld&) { return core::Result<void>(); });
    return !report.end && report.end.error().code == core::Errc::invalid_argument;
  };

  EXPECT_TRUE(refused({.ranks = 0}));
  EXPECT_TRUE(refused({.ranks = 2, .fewest_ranks = 3}));
  EXPECT_TRUE(refused({.ranks = 2, .fewest_ranks = -1}));
  EXPECT_TRUE(refused({.faults = {{Kind::kill, {-1}, milliseconds(1)}}}));
  EXPECT_TRUE(refused({.faults = {{Kind::kill, {0}, milliseconds(-1)}}}));
  EXPECT_FALSE(refused({}));
}

TEST(JobUnderFaults, IsReplayedExactly) {
  const auto options = options_for(core::Strategy::zero1);
  const SimulatedJobOptions job{.ranks = 4, .seed = 8, .drawn_faults = 5};

  const auto first = run(job, options).report;
  const auto again = run(job, options).report;

  EXPECT_EQ(first.trace_hash, again.trace_hash);
  EXPECT_EQ(first.log, again.log);
  EXPECT_THAT(first.log, testing::Contains(HasSubstr("epoch 2 begins")));
}

}  // namespace
}  // namespace troupe::actors
