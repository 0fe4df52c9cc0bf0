#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/errors.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::actors {
namespace {

constexpr std::int64_t kOverlappedSteps = 4;

/// Sums over the steps of rank 0, of a job in which a bucket's collectives take less than a layer's backward,
/// and many times what the verdict takes, which nothing hides.
StepTimes times_of(core::Strategy strategy, bool overlap) {
  auto options = tiny_job(strategy, overlap);
  options.steps = kOverlappedSteps;
  options.layers = 8;
  options.width = 1200;
  options.layer_time = std::chrono::microseconds(200);
  options.session.training.lanes = 2;
  options.session.training.bucket_elements = 1400;
  SimulationOptions simulation;
  simulation.ranks = {2};
  simulation.fabric.bytes_per_second = 2e8;
  simulation.device.task_latency = std::chrono::microseconds(1);
  auto outcome = simulate_tiny(simulation, options);
  EXPECT_EQ(problems_of(outcome.report), "");
  StepTimes sum;
  for (const auto& step : outcome.ranks[0].outcomes) {
    sum.total += step.times.total;
    sum.exposed += step.times.exposed;
    sum.communication += step.times.communication;
  }
  return sum;
}

TEST(Overlap, HidesMostOfTheCommunicationAndShortensTheStep) {
  for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    auto apart = times_of(strategy, false);
    auto overlapped = times_of(strategy, true);

    EXPECT_LT(overlapped.total, apart.total) << core::name_of(strategy);
    EXPECT_LT(overlapped.exposed, apart.exposed) << core::name_of(strategy);
    EXPECT_LT(2 * overlapped.exposed, overlapped.communication) << core::name_of(strategy);
    EXPECT_GE(apart.exposed, apart.communication) << core::name_of(strategy);
  }
}

TEST(StepTimes, SayHowMuchOfTheWaitWasTheOptimizer) {
  auto options = tiny_job(core::Strategy::ddp, false);
  options.steps = kOverlappedSteps;

  const auto outcome = simulate_tiny(2, 1, options);

  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& step : outcome.ranks[0].outcomes) {
    // Nothing is communicated during the update of DDP, and without overlap the trainer waits for it.
    EXPECT_GT(step.times.exposed_optimizer.count(), 0);
    EXPECT_EQ(step.times.exposed_optimizer, step.times.optimizer);
    EXPECT_GT(step.times.other_waits().count(), 0) << "messages take time, too";
  }
}

/// Spans of collectives and instants of gradients, by the flow of their step and bucket.
struct Flow {
  std::vector<std::chrono::nanoseconds> gradients;
  std::vector<std::chrono::nanoseconds> launches;
};

std::map<std::uint64_t, Flow> flows_of(const ScriptResult& rank) {
  std::map<std::uint64_t, Flow> flows;
  for (const auto& event : rank.trace) {
    if (event.flow == 0) continue;
    if (event.track == "trainer") flows[event.flow].gradients.push_back(event.begin);
    if (event.track == "communication" && event.name.find("all_gather") == std::string::npos) {
      flows[event.flow].launches.push_back(event.begin);
    }
  }
  return flows;
}

Script traced_script(bool overlap) {
  Script script;
  script.parameters = {{"a", {40}}, {"b", {20}}, {"c", {30}}, {"d", {30}}};
  script.steps = kOverlappedSteps;
  script.session.trace = true;
  script.session.training.lanes = 4;
  script.session.training.bucket_elements = 50;
  script.session.training.overlap = overlap;
  return script;
}

// Covers buffer-4.
TEST(Overlap, LaunchesBucketsOncePerStepAfterTheirLastGradient) {
  for (auto numerics : {core::Numerics::fast, core::Numerics::ordered}) {
    for (bool overlap : {false, true}) {
      auto script = traced_script(overlap);
      script.session.training.numerics = numerics;

      auto outcome = simulate_script(2, script);

      ASSERT_EQ(problems_of(outcome.report), "");
      for (const auto& rank : outcome.ranks) {
        auto flows = flows_of(rank);
        ASSERT_EQ(flows.size(), static_cast<std::size_t>(kOverlappedSteps * (overlap ? 2 : 1)));
        for (const auto& [id, flow] : flows) {
          ASSERT_EQ(flow.launches.size(), 1u);
          ASSERT_FALSE(flow.gradients.empty());
          EXPECT_GE(flow.launches[0], *std::max_element(flow.gradients.begin(), flow.gradients.end()));
        }
      }
    }
  }
}

TEST(Overlap, LaunchesBucketsUnderTheNextBackwardThoughDtypesAlternate) {
  const auto narrow = core::DType::bf16;
  auto script = traced_script(true);
  script.parameters = {{"a", {40}}, {"b", {40}, narrow}, {"c", {40}}, {"d", {40}, narrow}};
  script.session.training.bucket_elements = 1;
  script.session.training.lanes = 2;
  script.backward_time = std::chrono::milliseconds(1);

  for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    script.session.training.strategy = strategy;
    auto outcome = simulate_script(2, script);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) {
      auto flows = flows_of(rank);
      for (std::int64_t step = 1; step < kOverlappedSteps; ++step) {
        for (std::uint32_t bucket = 0; bucket + 1 < 4; ++bucket) {
          const auto& launches = flows[bucket_flow({step}, {bucket})].launches;
          ASSERT_EQ(launches.size(), 1u);
          EXPECT_LT(launches[0], flows[bucket_flow({step}, {bucket + 1})].gradients[0]);
        }
      }
    }
  }
}

// Covers ready-1.
TEST(Session, SaysTheSameTwiceWhenNothingIsComing) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  auto options = tiny_job(core::Strategy::zero1);
  auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
    auto before = rank.message_count();
    for (int i = 0; i < 3; ++i) {
      TRY(session->publish_all());
      TRY(session->before_use({0}));
    }
    bool silent = rank.message_count() == before;
    TRY(session->leave());
    return silent;
  });

  EXPECT_EQ(problems_of(outcome.report), "");
  EXPECT_TRUE(outcome.ranks[0] && outcome.ranks[1]) << "asking again starts no work";
}

TEST(Session, AnswersEveryCallWithTheErrorAfterADeath) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  simulation.faults = {{SimulatedFault::Kind::kill, {1}, std::chrono::milliseconds(20)}};
  auto options = tiny_job(core::Strategy::zero1);
  options.steps = 1'000'000;
  std::vector<core::Error> answers;
  auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
    TRY(session->begin_step(0.1));
    if (rank.rank().value == 1) {
      rank.compute(std::chrono::seconds(1));
      return core::fail(core::Errc::aborted, "died");
    }
    for (auto lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      for (std::uint32_t p = 8; p-- > 0;) TRY(session->gradient_ready({p}));
      TRY(session->end_lane(0));
    }
    answers.push_back(session->finish_step().error());
    answers.push_back(session->begin_step(0.1).error());
    answers.push_back(session->leave().error());
    return true;
  });

  EXPECT_EQ(violations_of(outcome.report), "");
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].code, core::Errc::peer_lost);
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

}  // namespace
}  // namespace troupe::actors
