#include "apps/gpt/run/distributed_run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/report/run_record.hpp"
#include "tests/apps_gpt/text_file.hpp"

namespace troupe::apps::gpt {
namespace {

/// A job of one rank, this process, with its output and its checkpoints.
class RunOfAProcess : public testing::Test {
 protected:
  RunOfAProcess() : text_(some_text(4000)) {
    std::string pattern = testing::TempDir() + "troupe_run_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options_.trainer.model = preset("tiny").value();
    options_.trainer.microbatch = {1, options_.trainer.model.context};
    options_.trainer.session.training.lanes = 1;
    options_.text = text_.path();
    options_.evaluation_batches = 1;
    options_.world.checkpoint_directory = folder_ / "checkpoints";
    options_.output = folder_ / "output";
  }
  ~RunOfAProcess() override {
    for (const char* name : kVariables) ::unsetenv(name);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  core::Result<RunEnd> train_up_to(std::int64_t steps) {
    options_.steps = steps;
    return run_distributed(options_);
  }

  /// What a launcher says to the next generation.
  static void restart() {
    for (const char* name : kVariables) ::setenv(name, "0", 1);
    ::setenv("WORLD_SIZE", "1", 1);
    ::setenv("TROUPE_GENERATION", "1", 1);
  }

  std::filesystem::path record_path() const { return std::filesystem::path(options_.output) / "run.jsonl"; }

  int steps_in_trace() const {
    std::ifstream file(std::filesystem::path(options_.output) / "trace.json");
    const auto trace = nlohmann::json::parse(file);
    int steps = 0;
    // One rank plays one lane, so this gradient is ready once per step.
    for (const auto& event : trace.at("traceEvents"))
      steps += event.at("name") == "model.norm.weight gradient" ? 1 : 0;
    return steps;
  }

  static constexpr const char* kVariables[] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "TROUPE_GENERATION"};
  TextFile text_;
  std::filesystem::path folder_;
  RunOptions options_;
};

TEST_F(RunOfAProcess, TracesItsFirstStepsAlsoAfterAResume) {
  options_.trainer.session.trace = true;
  options_.trace_steps = 2;

  ASSERT_TRUE(train_up_to(4));
  EXPECT_EQ(steps_in_trace(), 2);
  ASSERT_TRUE(train_up_to(9));
  EXPECT_EQ(steps_in_trace(), 2);
}

TEST_F(RunOfAProcess, TracesNoStepWhenNoneIsAskedFor) {
  options_.trainer.session.trace = true;
  options_.trace_steps = 0;

  ASSERT_TRUE(train_up_to(2));

  EXPECT_EQ(steps_in_trace(), 0);
}

TEST_F(RunOfAProcess, ResumedStartGoesOnWithTheFirstsRecord) {
  ASSERT_TRUE(train_up_to(2));
  const RunRecord first = read_run(record_path()).value();

  ASSERT_TRUE(train_up_to(5));

  const RunRecord record = read_run(record_path()).value();
  ASSERT_EQ(record.steps.size(), 5u);
  EXPECT_EQ(record.steps[1].loss, first.steps[1].loss);
  EXPECT_GE(record.steps[2].seconds_since_start, record.steps[1].seconds_since_start);
  EXPECT_EQ(record.description.steps, 5);
  EXPECT_EQ(record.description.started_at, first.description.started_at);
  std::vector<std::string> kinds;
  for (const RunEvent& event : record.events) kinds.push_back(event.kind);
  EXPECT_THAT(kinds, testing::IsSupersetOf({"start", "save", "end", "restart", "resume"}));
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "start"), 1);
}

TEST_F(RunOfAProcess, FreshStartSetsAnotherRunsRecordAside) {
  for (const std::int64_t steps : {2, 3, 4}) {
    std::filesystem::remove_all(options_.world.checkpoint_directory);
    ASSERT_TRUE(train_up_to(steps));
  }

  const std::filesystem::path folder(options_.output);
  EXPECT_EQ(read_run(record_path()).value().steps.size(), 4u);
  EXPECT_EQ(read_run(folder / "run.1.jsonl").value().steps.size(), 2u);
  EXPECT_EQ(read_run(folder / "run.2.jsonl").value().steps.size(), 3u);
}

TEST_F(RunOfAProcess, RestartGoesOnWithTheFirstStartsClock) {
  ASSERT_TRUE(train_up_to(2));
  const RunRecord first = read_run(record_path()).value();
  {
    // This makes it look as if it had begun an hour earlier.
    std::ifstream file(record_path());
    std::string head;
    std::getline(file, head);
    auto line = nlohmann::json::parse(head);
    line["started_unix_seconds"] = line["started_unix_seconds"].get<double>() - 3600;
    const std::string rest{std::istreambuf_iterator<char>(file), {}};
    std::ofstream(record_path()) << line.dump() << '\n' << rest;
  }
  restart();

  ASSERT_TRUE(train_up_to(4));

  const RunRecord record = read_run(record_path()).value();
  ASSERT_EQ(record.steps.size(), 4u);
  EXPECT_EQ(record.steps[1].seconds_since_start, first.steps[1].seconds_since_start);
  EXPECT_GE(record.steps[2].seconds_since_start, 3600);
  EXPECT_GE(record.steps[3].seconds_since_start, record.steps[2].seconds_since_start);
  double last = 0;
  for (const RunEvent& event : record.events) {
    EXPECT_GE(event.seconds_since_start, last) << event.kind;
    last = event.seconds_since_start;
    if (event.kind != "restart") continue;
    EXPECT_GE(last, 3600);
    EXPECT_EQ(event.step, 2) << "of the two that its checkpoint holds";
    EXPECT_EQ(event.text, "1 rank");
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
