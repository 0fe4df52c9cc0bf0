#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "apps/report/run_record.hpp"
#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;
using testing::Not;
using tests::GptJob;

struct Placing {
  int ranks = 1;
  const char* strategy = "ddp";
};

const std::vector<Placing> kPlacings{{1, "ddp"},   {2, "ddp"},   {3, "ddp"},   {4, "ddp"},   {8, "ddp"},
                                     {1, "zero1"}, {2, "zero1"}, {3, "zero1"}, {4, "zero1"}, {8, "zero1"}};

class Checkpoints : public testing::Test {
 protected:
  Checkpoints() : text_(tests::write_sample_text(folder_)) {}

  GptJob job(const Placing& placing, const std::string& checkpoints, int steps = 20, int save_every = 8) {
    return {placing.ranks,
            steps,
            {},
            {"--strategy", placing.strategy, "--checkpoints", folder_.path(checkpoints), "--save-every",
             std::to_string(save_every), "--keep-last", "0"}};
  }

  tests::CommandResult run(const GptJob& job, const std::string& output) {
    return tests::run_command(tests::gpt_command(job, text_, folder_.path(output)),
                              std::chrono::seconds(120));
  }

  std::string uninterrupted_state(int steps) {
    const auto result = run({1, steps, {}, {}}, "reference");
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return tests::read_record(folder_.path("reference")).state;
  }

  bool has_begun(const std::string& output) const {
    return !tests::read_record(folder_.path(output)).losses.empty();
  }

  /// The text of the run's first event of this kind.
  std::string event(const std::string& output, const std::string& kind) {
    const auto record = apps::read_run(std::filesystem::path(folder_.path(output)) / "run.jsonl");
    if (!record) return "no record";
    for (const auto& event : record->events) {
      if (event.kind == kind) return event.text;
    }
    return "no event";
  }

  tests::ScratchFolder folder_;
  std::string text_;
};

// Covers save-1, ranks-15.
TEST_F(Checkpoints, OfRealProcessesGoOnAnywhereBitwise) {
  const auto expected = uninterrupted_state(20);
  for (std::size_t from = 0; from < kPlacings.size(); ++from) {
    const auto checkpoints = fmt::format("saved-{}", from);
    const auto saved = run(job(kPlacings[from], checkpoints), "saving");
    ASSERT_EQ(saved.exit_code, 0) << saved.output;
    EXPECT_EQ(tests::read_record(folder_.path("saving")).state, expected) << "saving changes nothing";
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& to = kPlacings[(3 * from + 4 * i + 1) % kPlacings.size()];
      const auto copy = fmt::format("copy-{}-{}", from, i);
      std::filesystem::copy(folder_.path(checkpoints), folder_.path(copy),
                            std::filesystem::copy_options::recursive);
      std::filesystem::remove_all(folder_.path(copy) + "/step_00000020");
      std::filesystem::remove_all(folder_.path(copy) + "/step_00000016");

      const auto resumed = run(job(to, copy), copy + "-run");

      ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
      EXPECT_EQ(event(copy + "-run", "resume"), "resumed from step_00000008, after 8 steps");
      EXPECT_EQ(tests::read_record(folder_.path(copy + "-run")).state, expected)
          << kPlacings[from].ranks << " " << kPlacings[from].strategy << " to " << to.ranks << " "
          << to.strategy;
    }
  }
}

TEST_F(Checkpoints, AKilledJobGoesOnFromItsNewestCheckpoint) {
  const auto id = fmt::format("resume-{}", getpid());
  auto killed = job({3, "zero1"}, "checkpoints", 400);
  killed.launch_options = {"--max-restarts", "1", "--rdzv-id", id};

  const auto outcome = tests::run_and_signal(
      tests::gpt_command(killed, text_, folder_.path("killed")), id, 1,
      [&](int) { return tests::count_checkpoints(folder_.path("checkpoints")) > 0; }, SIGKILL);

  ASSERT_TRUE(outcome.hit);
  ASSERT_EQ(outcome.result.exit_code, 0) << outcome.result.output;
  EXPECT_NE(event("killed", "resume").find("resumed from step_"), std::string::npos) << outcome.result.output;
  EXPECT_EQ(tests::read_record(folder_.path("killed")).state, uninterrupted_state(400));
}

TEST_F(Checkpoints, TermSavesAndLeavesWithTheRestartCode) {
  const auto id = fmt::format("term-{}", getpid());
  auto asked = job({2, "zero1"}, "checkpoints", 1000, 0);
  asked.launch_options = {"--rdzv-id", id};

  const auto outcome = tests::run_and_signal(
      tests::gpt_command(asked, text_, folder_.path("asked")), id, 1, [&](int) { return has_begun("asked"); },
      SIGTERM);

  ASSERT_TRUE(outcome.hit);
  EXPECT_EQ(outcome.result.exit_code, 75) << outcome.result.output;
  EXPECT_NE(event("asked", "leave").find("asked to leave: saved after"), std::string::npos);
  const auto again = run(asked, "again");
  ASSERT_EQ(again.exit_code, 0) << again.output;
  EXPECT_NE(event("again", "resume").find("resumed from step_"), std::string::npos);
  EXPECT_EQ(tests::read_record(folder_.path("again")).state, uninterrupted_state(1000));
}

TEST_F(Checkpoints, Usr2SavesNowOnceAndTrainingGoesOn) {
  const auto id = fmt::format("usr2-{}", getpid());
  auto asked = job({2, "ddp"}, "checkpoints", 1000, 0);
  asked.launch_options = {"--rdzv-id", id};

  const auto outcome = tests::run_and_signal(
      tests::gpt_command(asked, text_, folder_.path("asked")), id, 1, [&](int) { return has_begun("asked"); },
      SIGUSR2);

  ASSERT_TRUE(outcome.hit);
  ASSERT_EQ(outcome.result.exit_code, 0) << outcome.result.output;
  EXPECT_EQ(tests::count_checkpoints(folder_.path("checkpoints")), 2)
      << "the one that was asked for, and the last";
}

TEST_F(Checkpoints, AreMissedOnceAndNotAfterEveryRestart) {
  std::filesystem::create_directory(folder_.path("empty"));
  auto without = job({2, "ddp"}, "checkpoints");
  without.launch_options = {"--max-restarts", "3"};
  without.trainer_options.insert(without.trainer_options.end(), {"--resume", folder_.path("empty")});

  const auto missed = run(without, "missed");

  EXPECT_EQ(missed.exit_code, 97) << missed.output;
  EXPECT_THAT(missed.output, HasSubstr("empty holds no checkpoint to resume from"));
  EXPECT_THAT(missed.output, Not(HasSubstr("restart 1")));
}

TEST_F(Checkpoints, ThatAreAllDamagedAreNotRetriedEveryRestart) {
  ASSERT_EQ(run(job({2, "ddp"}, "checkpoints", 8), "saving").exit_code, 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path("checkpoints"))) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), 100);
  }
  auto damaged = job({2, "ddp"}, "checkpoints");
  damaged.launch_options = {"--max-restarts", "3"};

  const auto refused = run(damaged, "refused");

  EXPECT_EQ(refused.exit_code, 97) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("no checkpoint could be loaded"));
  EXPECT_THAT(refused.output, Not(HasSubstr("restart 1")));
}

TEST_F(Checkpoints, OfOtherRunsAreNotOverwrittenByNewOnes) {
  ASSERT_EQ(run(job({1, "ddp"}, "checkpoints"), "first").exit_code, 0);
  auto anew = job({1, "ddp"}, "checkpoints");
  anew.launch_options = {"--max-restarts", "1"};
  anew.trainer_options.insert(anew.trainer_options.end(), {"--resume", "never"});

  const auto refused = run(anew, "second");

  EXPECT_EQ(refused.exit_code, 97) << "a restart would go on from the other run: " << refused.output;
  EXPECT_NE(refused.output.find("holds checkpoints of another run"), std::string::npos) << refused.output;
  EXPECT_THAT(refused.output, Not(HasSubstr("restart 1")));
}

TEST_F(Checkpoints, LaterThanTheStartingOneAreNotMixedIn) {
  ASSERT_EQ(run(job({2, "ddp"}, "checkpoints", 24), "first").exit_code, 0);
  auto back = job({2, "ddp"}, "checkpoints", 24);
  back.launch_options = {"--max-restarts", "1"};
  back.trainer_options.insert(back.trainer_options.end(),
                              {"--learning-rate", "1e-4", "--force-resume", "--resume",
                               folder_.path("checkpoints") + "/step_00000008"});

  const auto refused = run(back, "second");

  EXPECT_EQ(refused.exit_code, 97) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("step_00000024"));
  EXPECT_THAT(refused.output, HasSubstr("another --checkpoints directory"));
  EXPECT_THAT(refused.output, Not(HasSubstr("restart 1")));
  EXPECT_FALSE(has_begun("second"));
  std::filesystem::remove_all(folder_.path("checkpoints") + "/step_00000016");
  std::filesystem::remove_all(folder_.path("checkpoints") + "/step_00000024");
  const auto made_room = run(back, "third");
  EXPECT_EQ(made_room.exit_code, 0) << made_room.output;
  EXPECT_EQ(tests::count_checkpoints(folder_.path("checkpoints")), 3);
}

TEST_F(Checkpoints, OfTheSameStepMustBeTheStartingOne) {
  ASSERT_EQ(run(job({2, "ddp"}, "checkpoints", 8), "first").exit_code, 0);
  auto other = job({2, "ddp"}, "other", 8);
  other.trainer_options.insert(other.trainer_options.end(), {"--seed", "2"});
  ASSERT_EQ(run(other, "other-run").exit_code, 0);
  std::filesystem::copy(folder_.path("checkpoints"), folder_.path("copy"),
                        std::filesystem::copy_options::recursive);
  const auto begin_into = [&](const std::string& checkpoints) {
    auto begun = job({2, "ddp"}, checkpoints, 16);
    begun.trainer_options.insert(begun.trainer_options.end(),
                                 {"--resume", folder_.path("checkpoints") + "/step_00000008"});
    return run(begun, checkpoints + "-begun");
  };

  const auto refused = begin_into("other");
  EXPECT_EQ(refused.exit_code, 97) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("other holds step_00000008"));
  for (const char* good : {"copy", "checkpoints", "new"}) {
    const auto begun = begin_into(good);
    EXPECT_EQ(begun.exit_code, 0) << begun.output;
  }
}

TEST_F(Checkpoints, OfANamedDirectoryAreUsedAsByAuto) {
  ASSERT_EQ(run(job({2, "ddp"}, "checkpoints", 24), "first").exit_code, 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path("checkpoints/step_00000024"))) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), 100);
  }
  auto again = job({2, "ddp"}, "checkpoints", 32);
  again.trainer_options.insert(again.trainer_options.end(), {"--resume", folder_.path("checkpoints") + "/"});

  const auto resumed = run(again, "second");

  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(event("second", "resume"), "resumed from step_00000016, after 16 steps");
}

TEST_F(Checkpoints, OfItsOwnPrecedeAJobsStartingPath) {
  ASSERT_EQ(run(job({3, "zero1"}, "before", 8), "first").exit_code, 0);
  const auto id = fmt::format("path-{}", getpid());
  auto killed = job({3, "zero1"}, "checkpoints", 400);
  killed.launch_options = {"--max-restarts", "1", "--rdzv-id", id};
  killed.trainer_options.insert(killed.trainer_options.end(), {"--resume", folder_.path("before")});

  const auto outcome = tests::run_and_signal(
      tests::gpt_command(killed, text_, folder_.path("killed")), id, 1,
      [&](int) { return tests::count_checkpoints(folder_.path("checkpoints")) > 0; }, SIGKILL);

  ASSERT_TRUE(outcome.hit);
  ASSERT_EQ(outcome.result.exit_code, 0) << outcome.result.output;
  EXPECT_THAT(outcome.result.output, HasSubstr("restart 1"));
  EXPECT_THAT(outcome.result.output, HasSubstr("resumed from step_00000008"));
  EXPECT_EQ(tests::read_record(folder_.path("killed")).state, uninterrupted_state(400));
}

TEST_F(Checkpoints, UnsavedBeforeLeavingAreNotReportedAsSaved) {
  const auto id = fmt::format("unsaved-{}", getpid());
  auto asked = job({2, "zero1"}, "checkpoints", 1000, 0);
  asked.launch_options = {"--rdzv-id", id};
  const auto has_lost_its_directory = [&](int) {
    return has_begun("asked") && std::filesystem::remove_all(folder_.path("checkpoints")) > 0;
  };

  const auto outcome = tests::run_and_signal(tests::gpt_command(asked, text_, folder_.path("asked")), id, 1,
                                             has_lost_its_directory, SIGTERM);

  ASSERT_TRUE(outcome.hit);
  EXPECT_EQ(outcome.result.exit_code, 1) << outcome.result.output;
  EXPECT_THAT(event("asked", "leave"), HasSubstr("are not saved"));
  EXPECT_THAT(outcome.result.output, Not(HasSubstr("training goes on")));
  EXPECT_THAT(outcome.result.output, Not(HasSubstr("saved after")));
}

TEST_F(Checkpoints, UnsavableAtTheEndFailRunsDespiteTheirExport) {
  const auto id = fmt::format("end-{}", getpid());
  auto ending = job({2, "ddp"}, "checkpoints", 200, 0);
  ending.launch_options = {"--rdzv-id", id};
  ending.trainer_options.insert(ending.trainer_options.end(), {"--export", folder_.path("model")});
  const auto has_lost_its_directory = [&](int) {
    return has_begun("ending") && std::filesystem::remove_all(folder_.path("checkpoints")) > 0;
  };

  const auto outcome = tests::run_and_signal(tests::gpt_command(ending, text_, folder_.path("ending")), id, 1,
                                             has_lost_its_directory, 0);

  ASSERT_TRUE(outcome.hit);
  EXPECT_EQ(outcome.result.exit_code, 1) << outcome.result.output;
  EXPECT_THAT(outcome.result.output, HasSubstr("the state after 200 steps was not saved"));
  EXPECT_THAT(outcome.result.output, Not(HasSubstr("training goes on")));
  EXPECT_TRUE(std::filesystem::exists(folder_.path("model") + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path("ending") + "/report.html"));
  EXPECT_EQ(tests::read_record(folder_.path("ending")).state, uninterrupted_state(200));
}

}  // namespace
}  // namespace troupe
