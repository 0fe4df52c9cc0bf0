#include "apps/report/progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apps/report/summary.hpp"
#include "tests/report/run_fixture.hpp"

namespace troupe::apps {
namespace {

using namespace std::chrono_literals;
using testing::step_at;

/// What a Progress wrote to a stream that lives in memory.
class Screen {
 public:
  Screen() : stream_(open_memstream(&data_, &size_)) {}
  ~Screen() {
    std::fclose(stream_);
    std::free(data_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  std::FILE* stream() { return stream_; }
  std::string text() {
    std::fflush(stream_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_;
};

TEST(Progress, SaysStepLossSpeedExposedCommunicationAndTimeLeft) {
  Screen screen;
  Progress progress(screen.stream(), {.total_steps = 100}, 10s);

  progress.step_done(step_at(0), 12s);

  // One step took 2 s and 99 are left.
  EXPECT_EQ(screen.text(), "step   1/100  loss 5.0000  20k tokens/s  exposed 10.0 %  left 3:18\n");
}

TEST(Progress, WritesALineEveryIntervalAndTheLastStep) {
  Screen screen;
  Progress progress(screen.stream(), {.total_steps = 12, .interval = 5s}, 0s);

  for (int step = 0; step < 12; ++step) progress.step_done(step_at(step), std::chrono::seconds(step + 1));
  progress.finish(12s);

  EXPECT_THAT(screen.text(),
              ::testing::MatchesRegex("step  1/12 .*\nstep  6/12 .*\nstep 11/12 .*\nstep 12/12 .*\n"));
  EXPECT_THAT(screen.text(), ::testing::Not(::testing::HasSubstr("\x1b")));
}

TEST(Progress, RewritesOneTerminalLineWithoutWrapping) {
  Screen screen;
  Progress progress(screen.stream(), {.total_steps = 2, .terminal = true, .columns = 30}, 0s);

  progress.step_done(step_at(0), 1s);
  progress.step_done(step_at(1), 2s);
  progress.finish(2s);

  const std::string clear = "\r\x1b[2K";
  EXPECT_EQ(screen.text(), clear + "step 1/2  loss 5.0000  20k to" + clear + "step 2/2  loss 2.5000  20k to" +
                               clear + "step 2/2  loss 2.5000  20k to" + "\n");
}

TEST(Progress, ShowsTheLatestEvaluationLossAndARefusedStep) {
  Screen screen;
  Progress progress(screen.stream(), {.total_steps = 3, .interval = 0s}, 0s);
  StepRecord evaluated = step_at(0);
  evaluated.evaluation_loss = 1.25;
  StepRecord refused = step_at(1);
  refused.committed = false;

  progress.step_done(evaluated, 1s);
  progress.step_done(refused, 2s);

  EXPECT_THAT(screen.text(), ::testing::HasSubstr("step 2/3  loss 2.5000  eval 1.2500"));
  EXPECT_THAT(screen.text(), ::testing::EndsWith("(refused)\n"));
}

TEST(Progress, SaysThatAStepHadNothingToLearn) {
  Screen screen;
  Progress progress(screen.stream(), {.total_steps = 3, .interval = 0s}, 0s);
  StepRecord empty = step_at(0);
  empty.loss = std::nan("");
  empty.target_tokens = 0;
  empty.committed = false;

  progress.step_done(empty, 1s);

  EXPECT_THAT(screen.text(), ::testing::HasSubstr("step 1/3  no target token  "));
  EXPECT_THAT(screen.text(), ::testing::EndsWith("(refused)\n"));
}

TEST(Progress, WritesANoteOnALineOfItsOwn) {
  Screen screen;
  Progress progress(screen.stream(), {.total_steps = 3, .terminal = true}, 0s);
  progress.step_done(step_at(0), 1s);

  progress.note("saved");

  EXPECT_THAT(screen.text(), ::testing::EndsWith("\r\x1b[2Ksaved\n"));
}

TEST(Progress, WritesTimesAndNumbersShort) {
  EXPECT_EQ(clock_text(5s), "0:05");
  EXPECT_EQ(clock_text(3599s), "59:59");
  EXPECT_EQ(clock_text(3661s), "1:01:01");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(999.4), "999");
  EXPECT_EQ(short_number(999.6), "1k");
  EXPECT_EQ(short_number(12345), "12.3k");
  EXPECT_EQ(short_number(4.56e7), "45.6M");
}

TEST(Summary, PassesOverEvaluationsThatAreNotANumber) {
  RunRecord record{.description = testing::description(), .steps = {}, .events = {}, .samples = {}};
  for (int step = 0; step < 4; ++step) record.steps.push_back(step_at(step));
  record.steps[0].evaluation_loss = std::nan("");
  record.steps[1].evaluation_loss = 3;
  record.steps[2].evaluation_loss = 2;
  record.steps[3].evaluation_loss = std::nan("");

  const RunSummary summary = summarize(record);

  EXPECT_EQ(summary.best_evaluation_loss, 2.0);
  EXPECT_TRUE(std::isnan(*summary.evaluation_loss)) << "the last one";
}

/// A process that was killed after a step may not have recorded it; the one in its place goes on with the
/// next.
TEST(Summary, CountsStepsThatNobodyRecorded) {
  RunRecord record{.description = testing::description(), .steps = {}, .events = {}, .samples = {}};
  for (const int step : {0, 1, 2, 4, 5}) record.steps.push_back(step_at(step));

  EXPECT_EQ(summarize(record).steps, 6);
  EXPECT_EQ(summarize(RunRecord{}).steps, 0);
}

TEST(Summary, JudgesTheStepsAfterTheFirst) {
  RunRecord record{.description = testing::description(), .steps = {}, .events = {}, .samples = {}};
  for (int step = 0; step < 101; ++step) record.steps.push_back(step_at(step));
  record.steps[0].step_seconds = 60;
  record.steps[50].step_seconds = 0.9;
  record.steps[30].evaluation_loss = 1.0;
  record.steps[60].evaluation_loss = 1.5;
  record.steps[7].committed = false;
  for (const std::size_t step : {7U, 8U, 9U}) record.steps[step].target_tokens = 1000;
  record.events = {{.step = 3, .seconds_since_start = 1, .kind = "restart", .text = ""}};

  const RunSummary summary = summarize(record);

  EXPECT_EQ(summary.steps, 101);
  EXPECT_EQ(summary.refused_steps, 1);
  EXPECT_EQ(summary.target_tokens, 2000) << "a refused step learns nothing";
  EXPECT_EQ(summary.restarts, 1);
  EXPECT_EQ(summary.loss, 5.0 / 101);
  EXPECT_EQ(summary.evaluation_loss, 1.5);
  EXPECT_EQ(summary.best_evaluation_loss, 1.0);
  EXPECT_EQ(summary.step_seconds, 0.5);
  EXPECT_EQ(summary.step_seconds_p99, 0.5);
  EXPECT_NEAR(summary.hidden_share, 0.75, 1e-12);
  EXPECT_NEAR(summary.exposed_share, 5 / 50.4, 1e-12);
  EXPECT_NEAR(summary.optimizer_share, 4 / 50.4, 1e-12);
  EXPECT_NEAR(summary.other_wait_share, 1 / 50.4, 1e-12);
}

TEST(Summary, HasNothingToSayOfARunWithoutSteps) {
  const RunSummary summary = summarize(RunRecord{});

  EXPECT_EQ(summary.steps, 0);
  EXPECT_EQ(summary.loss, std::nullopt);
  EXPECT_EQ(summary.hidden_share, 0);
}

TEST(Summary, IsATableWithStraightBorders) {
  RunRecord record{.description = testing::description(), .steps = {step_at(0)}, .events = {}, .samples = {}};

  const std::string table = summary_table(record);

  EXPECT_THAT(table, ::testing::HasSubstr("│ loss                  │ 5.0000 │\n"));
  EXPECT_THAT(table, ::testing::StartsWith("┌───────────────────────┬────────┐\n"));
}

}  // namespace
}  // namespace troupe::apps
