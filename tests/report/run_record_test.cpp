#include "apps/report/run_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/report/run_fixture.hpp"

namespace troupe::apps {
namespace {

using testing::description;
using testing::read_text;
using testing::step_at;
using testing::TemporaryFolder;

TEST(RunRecord, KeepsTheLastStepOfAPipeline) {
  TemporaryFolder folder;
  {
    auto writer = RunWriter::open(folder / "run.jsonl", description());
    ASSERT_TRUE(writer);
    RunPipeline first{.step = 3, .schedule = "1f1b", .bubble_share = 0.5, .theory = {}, .stages = {{}}};
    RunPipeline second{.step = 7,
                       .schedule = "interleaved",
                       .bubble_share = 0.25,
                       .theory = 0.2,
                       .stages = {{{"F0.0", 0, 1.5}, {"B0.0", 2, 4}}, {{"F0.1", 1.5, 2}}}};
    ASSERT_TRUE(writer->write(first));
    ASSERT_TRUE(writer->write(second));
  }

  const auto record = read_run(folder / "run.jsonl");

  ASSERT_TRUE(record);
  ASSERT_TRUE(record->pipeline);
  const RunPipeline& found = *record->pipeline;
  EXPECT_EQ(found.step, 7);
  EXPECT_EQ(found.schedule, "interleaved");
  EXPECT_EQ(found.bubble_share, 0.25);
  EXPECT_EQ(found.theory, 0.2);
  ASSERT_EQ(found.stages.size(), 2U);
  ASSERT_EQ(found.stages[0].size(), 2U);
  EXPECT_EQ(found.stages[0][1].name, "B0.0");
  EXPECT_EQ(found.stages[0][1].start_ms, 2);
  EXPECT_EQ(found.stages[0][1].end_ms, 4);
}

TEST(RunRecord, KeepsWhatWasLastReportedAsSent) {
  TemporaryFolder folder;
  {
    auto writer = RunWriter::open(folder / "run.jsonl", description());
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->write(RunTraffic{.step = 3, .axes = {{"data", 1, 2}}}));
    ASSERT_TRUE(writer->write(RunTraffic{.step = 7, .axes = {{"data", 5, 1 << 20}, {"tensor", 12, 48}}}));
  }

  const auto record = read_run(folder / "run.jsonl");

  ASSERT_TRUE(record && record->traffic);
  EXPECT_EQ(record->traffic->step, 7);
  ASSERT_EQ(record->traffic->axes.size(), 2U);
  EXPECT_EQ(record->traffic->axes[0].bytes, 1 << 20);
  EXPECT_EQ(record->traffic->axes[1].name, "tensor");
  EXPECT_EQ(record->traffic->axes[1].launches, 12);
  EXPECT_EQ(record->traffic->axes[1].bytes, 48);
}

TEST(RunRecord, GivesBackWhatWasWritten) {
  TemporaryFolder folder;
  {
    auto writer = RunWriter::open(folder / "runs/run.jsonl", description());
    ASSERT_TRUE(writer);
    StepRecord step = step_at(0);
    step.evaluation_loss = 1.5;
    step.target_tokens = 61;
    step.model_flop_utilisation = 0.25;
    step.committed = false;
    ASSERT_TRUE(writer->write(step));
    ASSERT_TRUE(writer->write(step_at(1)));
    ASSERT_TRUE(
        writer->write(RunEvent{.step = 1, .seconds_since_start = 2.5, .kind = "failure", .text = "rank 2"}));
    ASSERT_TRUE(writer->write(RunSample{.step = 1, .prompt = "In the", .text = " beginning"}));
    ASSERT_TRUE(writer->write(
        ExpertLoadRecord{.step = 1, .layers = {{.layer = 3, .chosen = {5, 7}, .dropped = {0, 2}}}}));
  }

  const auto record = read_run(folder / "runs/run.jsonl");

  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->description.name, "a run");
  EXPECT_EQ(record->description.ranks, 4);
  EXPECT_EQ(record->description.started_unix_seconds, 1767323045.25);
  EXPECT_EQ(record->description.configuration, description().configuration);
  ASSERT_EQ(record->steps.size(), 2u);
  EXPECT_EQ(record->steps[0].evaluation_loss, 1.5);
  EXPECT_EQ(record->steps[0].target_tokens, 61);
  EXPECT_EQ(record->steps[0].model_flop_utilisation, 0.25);
  EXPECT_FALSE(record->steps[0].committed);
  EXPECT_EQ(record->steps[1].loss, 2.5);
  EXPECT_EQ(record->steps[1].exposed_communication_seconds, 0.05);
  EXPECT_EQ(record->steps[1].optimizer_seconds, 0.04);
  EXPECT_EQ(record->steps[1].other_wait_seconds, 0.01);
  EXPECT_EQ(record->steps[1].evaluation_loss, std::nullopt);
  EXPECT_EQ(record->steps[1].target_tokens, std::nullopt);
  EXPECT_EQ(record->steps[1].model_flop_utilisation, std::nullopt);
  EXPECT_EQ(record->events.at(0).kind, "failure");
  EXPECT_EQ(record->events.at(0).seconds_since_start, 2.5);
  EXPECT_EQ(record->samples.at(0).text, " beginning");
  ASSERT_EQ(record->expert_loads.size(), 1u);
  EXPECT_EQ(record->expert_loads[0].step, 1);
  ASSERT_EQ(record->expert_loads[0].layers.size(), 1u);
  EXPECT_EQ(record->expert_loads[0].layers[0].layer, 3);
  EXPECT_EQ(record->expert_loads[0].layers[0].chosen, (std::vector<std::int64_t>{5, 7}));
  EXPECT_EQ(record->expert_loads[0].layers[0].dropped, (std::vector<std::int64_t>{0, 2}));
}

TEST(RunRecord, IsOneObjectPerLineWithItsDocumentedNames) {
  TemporaryFolder folder;
  auto writer = RunWriter::open(folder / "run.jsonl", description());
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write(step_at(3)));

  const std::string text = read_text(folder / "run.jsonl");

  EXPECT_THAT(text, ::testing::EndsWith("\"tokens_per_second\":20000.0,\"type\":\"step\"}\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("\"exposed_communication_seconds\":0.05,"));
}

TEST(RunRecord, KeepsALossThatIsNoNumber) {
  TemporaryFolder folder;
  auto writer = RunWriter::open(folder / "run.jsonl", description());
  ASSERT_TRUE(writer);
  StepRecord step = step_at(0);
  step.loss = std::nan("");
  step.gradient_norm = INFINITY;
  ASSERT_TRUE(writer->write(step));

  const auto record = read_run(folder / "run.jsonl");

  ASSERT_TRUE(record) << record.error().message;
  EXPECT_TRUE(std::isnan(record->steps.at(0).loss));
  EXPECT_TRUE(std::isnan(record->steps.at(0).gradient_norm));
}

TEST(RunRecord, PassesOverTheHalfLineThatACrashLeaves) {
  TemporaryFolder folder;
  auto writer = RunWriter::open(folder / "run.jsonl", description());
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write(step_at(0)));
  std::ofstream(folder / "run.jsonl", std::ios::app) << "{\"type\":\"step\",\"st";

  const auto record = read_run(folder / "run.jsonl");

  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->steps.size(), 1u);
}

TEST(RunRecord, GoesOnAfterACrashReplacingRepeatedSteps) {
  TemporaryFolder folder;
  {
    auto writer = RunWriter::open(folder / "run.jsonl", description());
    ASSERT_TRUE(writer);
    for (int step = 0; step < 5; ++step) ASSERT_TRUE(writer->write(step_at(step)));
    std::ofstream(folder / "run.jsonl", std::ios::app) << "{\"type\":";
  }
  auto writer = RunWriter::open(folder / "run.jsonl", description(), /*append=*/true);
  ASSERT_TRUE(writer);
  StepRecord repeated = step_at(2);
  repeated.loss = 77;
  ASSERT_TRUE(writer->write(repeated));

  const auto record = read_run(folder / "run.jsonl");

  ASSERT_TRUE(record) << record.error().message;
  ASSERT_EQ(record->steps.size(), 3u);
  EXPECT_EQ(record->steps[1].step, 1);
  EXPECT_EQ(record->steps[2].step, 2);
  EXPECT_EQ(record->steps[2].loss, 77);
}

TEST(RunRecord, RefusesALineThatIsNoStepByName) {
  TemporaryFolder folder;
  std::ofstream(folder / "run.jsonl") << "{\"type\":\"step\",\"step\":1}\n{\"type\":\"end\"}\n";

  const auto record = read_run(folder / "run.jsonl");

  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code, core::Errc::corrupt);
  EXPECT_THAT(record.error().message, ::testing::HasSubstr("line 1"));
}

TEST(RunRecord, SaysWhereThereIsNone) {
  EXPECT_EQ(read_run("/nowhere/run.jsonl").error().code, core::Errc::not_found);
  EXPECT_EQ(RunWriter::open("/proc/nowhere/run.jsonl", description()).error().code, core::Errc::io);
}

TEST(RunRecord, KnowsHowLongItsRunHasGoneOn) {
  RunRecord record{
      .description = description(), .steps = {step_at(0), step_at(1)}, .events = {}, .samples = {}};
  record.description.started_unix_seconds = 1000;

  EXPECT_EQ(seconds_since_start(record, 1250.5), 250.5);
}

TEST(RunRecord, ClockDoesNotGoBackWithTheWalls) {
  RunRecord record{
      .description = description(), .steps = {step_at(0), step_at(1)}, .events = {}, .samples = {}};
  record.description.started_unix_seconds = 1000;

  EXPECT_EQ(seconds_since_start(record, 900), 1);
  record.events = {{.step = 2, .seconds_since_start = 7, .kind = "save", .text = ""}};
  EXPECT_EQ(seconds_since_start(record, 1003), 7);
  record.description.started_unix_seconds = 0;  // written before there was one
  EXPECT_EQ(seconds_since_start(record, 1e9), 7);
}

TEST(RunRecord, TakesSampledBytesThatAreNoText) {
  TemporaryFolder folder;
  auto writer = RunWriter::open(folder / "run.jsonl", description());
  ASSERT_TRUE(writer);

  ASSERT_TRUE(writer->write(RunSample{.step = 0, .prompt = "", .text = "a\xff\xfe"}));

  const auto record = read_run(folder / "run.jsonl");
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->samples.at(0).text, "a\ufffd\ufffd");
}

}  // namespace
}  // namespace troupe::apps
