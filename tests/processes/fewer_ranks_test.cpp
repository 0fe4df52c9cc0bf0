#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/processes/lost_ranks.hpp"

namespace troupe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The steps in the record, as they were taken, for each epoch.
std::vector<std::vector<std::int64_t>> steps_of_epochs(const std::string& output) {
  std::vector<std::vector<std::int64_t>> parts(1);
  std::ifstream record(output + "/run.jsonl");
  for (std::string text; std::getline(record, text);) {
    const auto line = nlohmann::json::parse(text);
    if (line.value("kind", "") == "restart") parts.emplace_back();
    if (line.contains("loss")) parts.back().push_back(line.at("step").get<std::int64_t>());
  }
  return parts;
}

class FewerRanks : public tests::LostRanks {
 protected:
  /// Steps after that of which the newest local save was complete when a rank was lost, at most.
  static constexpr int kStepsInFlight = 2;

  void expect_nothing_taken_again(const Run& run, const std::string& name) const {
    EXPECT_EQ(steps_taken_again(name), 0);
    // A job that begins from first values again has a record of its own.
    EXPECT_THAT(run.result.output, Not(HasSubstr("is not enough to go on from")));
  }

  /// Begins with four ranks, and goes on with `fewest` at least.
  static tests::GptJob job_with(int fewest, std::vector<std::string> trainer_options = {}) {
    return {4, 120, {"--nproc-per-node", fmt::format("{}:4", fewest)}, std::move(trainer_options)};
  }
};

TEST_F(FewerRanks, GoOnWithTheSameBitsWhicheverAreLost) {
  for (const auto& lost : {std::vector<int>{0, 1}, std::vector<int>{3, 2}, std::vector<int>{1, 3}}) {
    const auto name = fmt::format("lost{}{}", lost[0], lost[1]);
    SCOPED_TRACE(name);

    const auto run = lose(job_with(2), name, {{12, {lost[0]}}, {60, {lost[1]}}});

    EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 3 ranks"));
    EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 2 ranks"));
    expect_bits(name, 120);
  }
}

TEST_F(FewerRanks, GoOnInEveryStrategyOverEitherBackEnd) {
  int lost = 0;
  for (const std::string strategy : {"ddp", "zero2", "zero3", "hsdp", "hfsdp"}) {
    SCOPED_TRACE(strategy);
    auto job =
        job_with(2, {"--strategy", strategy, "--collectives", lost % 2 == 0 ? "tcp" : "shared_memory"});
    if (strategy.starts_with("h"))
      job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2"});

    lose(job, strategy, {{12, {lost}}, {60, {(lost + 2) % 4}}});

    expect_bits(strategy, 120);
    lost = (lost + 1) % 4;
  }
}

TEST_F(FewerRanks, GoOnDownToOne) {
  lose(job_with(1), "one", {{12, {0, 2, 3}}});

  expect_bits("one", 120);
}

TEST_F(FewerRanks, AreAsManyAsBeforeOnceProcessesCanJoin) {
  auto job = job_with(2, {"--strategy", "ddp"});
  job.steps = 400;
  job.launch_options.insert(job.launch_options.end(), {"--max-restarts", "2"});
  constexpr int kNever = 0;

  const auto run = lose(job, "joined", {{12, {1}}, {30, {2}}}, kNever);

  EXPECT_THAT(run.result.output,
              HasSubstr("the job goes on with 3 ranks: those after rank 1 are one less now"));
  EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 4 ranks, "));
  expect_bits("joined", 400);
  expect_nothing_taken_again(run, "joined");
}

TEST_F(FewerRanks, KeepCopiesOfShardsInOthersMemory) {
  constexpr int kNever = 0;
  const auto job_of = [](const std::string& strategy) {
    return job_with(2, {"--strategy", strategy, "--optimizer-instances", "2", "--keep-instances"});
  };
  int lost = 0;
  for (const std::string strategy : {"zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);

    const auto run = lose(job_of(strategy), strategy, {{12, {lost}}, {60, {(lost + 1) % 4}}}, kNever);

    EXPECT_THAT(run.result.output, AllOf(HasSubstr("goes on with 3 ranks"), HasSubstr("on with 2 ranks")));
    expect_nothing_taken_again(run, strategy);
    expect_bits(strategy, 120);
    ++lost;
  }
  auto job = job_of("zero3");
  job.steps = 400;
  job.launch_options.insert(job.launch_options.end(), {"--max-restarts", "2"});

  const auto run = lose(job, "joined", {{12, {1}}, {30, {3}}}, kNever);

  EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 4 ranks, "));
  expect_bits("joined", 400);
  expect_nothing_taken_again(run, "joined");
}

TEST_F(FewerRanks, AreMoreWithoutASaveWhereStateIsShared) {
  int lost = 0;
  for (const std::string strategy : {"zero1", "zero3"}) {
    SCOPED_TRACE(strategy);
    auto job = job_with(2, {"--strategy", strategy});
    job.steps = 400;
    job.launch_options.insert(job.launch_options.end(), {"--max-restarts", "2"});
    constexpr int kSaveEvery = 10;

    const auto run = lose(job, strategy, {{12, {lost++ % 4}}}, kSaveEvery);

    EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 4 ranks, 1 more than before"));
    expect_bits(strategy, 400);
    const auto parts = steps_of_epochs(folder_.path(strategy));
    ASSERT_GE(parts.size(), 3u);
    EXPECT_EQ(parts.back().front(), parts[parts.size() - 2].back() + 1)
        << "no step was taken twice for joining";
  }
}

/// Nothing is saved but local copies, which those that are left have of the lost rank's shard.
TEST_F(FewerRanks, GoOnFromLocalCopiesOfMoreRanks) {
  constexpr int kNever = 0;
  const auto job_of = [&](const std::string& strategy, int steps) {
    auto job = job_with(2, {"--strategy", strategy, "--local-checkpoints",
                            folder_.path(fmt::format("copies-{}-{}", strategy, steps)), "--local-every", "1",
                            "--replication-factor", "2", "--replication-jump", "2"});
    job.steps = steps;
    return job;
  };
  int lost = 0;
  for (const std::string strategy : {"zero1", "zero2", "zero3", "hfsdp"}) {
    SCOPED_TRACE(strategy);
    auto job = job_of(strategy, 120);
    if (strategy == "hfsdp")
      job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2"});

    lose(job, strategy, {{12, {lost}}, {60, {(lost + 1) % 4}}}, kNever);

    EXPECT_LE(steps_taken_again(strategy), 2 * kStepsInFlight);
    expect_bits(strategy, 120);
    ++lost;
  }
  auto job = job_of("zero3", 400);
  job.launch_options.insert(job.launch_options.end(), {"--max-restarts", "2"});

  const auto run = lose(job, "joined", {{12, {1}}, {30, {3}}}, kNever);

  EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 4 ranks, "));
  EXPECT_LE(steps_taken_again("joined"), 2 * kStepsInFlight);
  expect_bits("joined", 400);
}

/// The memory of those that are left has no experts, since they are the trainer's own tensors.
TEST_F(FewerRanks, GoOnFromLocalCopiesOfExperts) {
  constexpr int kNever = 0;
  const std::vector<std::string> experts{"--experts", "4"};
  tests::run_gpt({4, 60, {}, experts}, text_, folder_.path("undisturbed-experts"));
  for (const std::string strategy : {"ddp", "zero3"}) {
    SCOPED_TRACE(strategy);
    auto options = experts;
    options.insert(options.end(), {"--strategy", strategy, "--local-checkpoints",
                                   folder_.path("copies-" + strategy), "--local-every", "1"});
    auto job = job_with(2, options);
    job.steps = 60;

    lose(job, strategy, {{12, {2}}, {30, {0}}}, kNever);

    EXPECT_LE(steps_taken_again(strategy), 2 * kStepsInFlight);
    tests::expect_same_steps(folder_.path(strategy), folder_.path("undisturbed-experts"));
  }
}

TEST_F(FewerRanks, AreMoreAfterALocalSave) {
  constexpr int kNever = 0;
  auto job = job_with(2, {"--experts", "4", "--strategy", "zero1", "--local-checkpoints",
                          folder_.path("copies"), "--local-every", "1"});
  job.steps = 200;
  tests::run_gpt({4, job.steps, {}, {"--experts", "4"}}, text_, folder_.path("undisturbed-experts"));
  job.launch_options.insert(job.launch_options.end(), {"--max-restarts", "2"});

  const auto run = lose(job, "joined", {{12, {1}}}, kNever);

  EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 4 ranks, 1 more than before"));
  EXPECT_LE(steps_taken_again("joined"), kStepsInFlight);
  tests::expect_same_steps(folder_.path("joined"), folder_.path("undisturbed-experts"));
}

}  // namespace
}  // namespace troupe
