#include <gtest/gtest.h>

#include <map>

#include "tests/simulation/scripted_job.hpp"

namespace troupe::actors {
namespace {

constexpr std::int64_t kSteps = 4;

TinyTrainerOptions timed_job(core::Strategy strategy, bool overlap) {
  auto options = tiny_job(strategy, overlap);
  options.steps = kSteps;
  options.session.training.lanes = 2;
  return options;
}

struct Times {
  std::chrono::nanoseconds total{};
  std::chrono::nanoseconds exposed{};
  std::chrono::nanoseconds communication{};
};

Times mean_times(const TinyTrainerResult& rank) {
  Times sum;
  for (const auto& outcome : rank.outcomes) {
    sum.total += outcome.times.total;
    sum.exposed += outcome.times.exposed;
    sum.communication += outcome.times.communication;
  }
  return sum;
}

TEST(Overlap, HidesCommunicationThatIsExposedWithoutIt) {
  for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    auto apart = mean_times(simulate_tiny(2, 1, timed_job(strategy, false)).ranks[0]);
    auto overlapped = mean_times(simulate_tiny(2, 1, timed_job(strategy, true)).ranks[0]);

    EXPECT_LT(overlapped.exposed, apart.exposed);
    EXPECT_LT(overlapped.exposed.count() * 2, overlapped.communication.count() + apart.exposed.count());
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
  script.steps = kSteps;
  script.session.trace = true;
  script.session.training.lanes = 4;
  script.session.training.bucket_elements = 50;
  script.session.training.overlap = overlap;
  return script;
}

TEST(Overlap, LaunchesABucketOnceAStepAndNeverBeforeItsLastGradient) {
  for (auto numerics : {core::Numerics::fast, core::Numerics::ordered}) {
    for (bool overlap : {false, true}) {
      auto script = traced_script(overlap);
      script.session.training.numerics = numerics;

      auto outcome = simulate_script(2, script);

      ASSERT_EQ(problems_of(outcome.report), "");
      for (const auto& rank : outcome.ranks) {
        auto flows = flows_of(rank);
        ASSERT_EQ(flows.size(), static_cast<std::size_t>(kSteps * (overlap ? 3 : 1)));
        for (const auto& [id, flow] : flows) {
          ASSERT_EQ(flow.launches.size(), 1u);
          ASSERT_FALSE(flow.gradients.empty());
          EXPECT_GE(flow.launches[0], *std::max_element(flow.gradients.begin(), flow.gradients.end()));
        }
      }
    }
  }
}

TEST(Session, SaysTheSameTwiceWhenNothingIsOnItsWay) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  auto options = tiny_job(core::Strategy::zero1);
  auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
    auto before = rank.message_count();
    for (int i = 0; i < 3; ++i) {
      TRY(session->publish_all());
      TRY(session->before_use(0));
    }
    bool silent = rank.message_count() == before;
    TRY(session->leave());
    return silent;
  });

  EXPECT_EQ(problems_of(outcome.report), "");
  EXPECT_TRUE(outcome.ranks[0] && outcome.ranks[1]) << "asking again starts no work";
}

TEST(Session, AnswersEveryCallWithTheErrorAfterARankDied) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  simulation.faults = {{SimulatedFault::Kind::kill, {1}, std::chrono::milliseconds(20)}};
  auto options = tiny_job(core::Strategy::zero1);
  options.steps = 1'000'000;
  std::vector<core::Error> answers;
  auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
    if (rank.rank().value == 1) {
      rank.compute(std::chrono::seconds(1));
      return core::fail(core::Errc::aborted, "died");
    }
    TRY(session->begin_step(0.1));
    for (auto lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      for (std::uint32_t p = 8; p-- > 0;) session->gradient_ready(p);
      session->end_lane(0);
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
