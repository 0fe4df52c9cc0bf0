// What careless people do to programs that run: cut their files, start them twice, ask them before they can
// answer.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/processes/gpt_job.hpp"
#include "tests/support/child.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::tests {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CarelessPeople : public testing::Test {
 protected:
  ScratchFolder folder_;
  std::string text_ = write_sample_text(folder_);

  /// Runs a job that would take long, and does this once it has trained.
  CommandResult disturb(const std::function<void()>& once) {
    const GptJob job{2, 1'000'000, {}, {"--learning-rate", "0.001"}};
    bool done = false;
    return run_command(gpt_command(job, text_, folder_.path("run")), seconds(60), [&] {
      if (done || read_record(folder_.path("run")).losses.empty()) return;
      done = true;
      once();
    });
  }

  void expect_refusal(const CommandResult& ended, const std::string& said) {
    EXPECT_EQ(ended.exit_code, 1) << ended.output;
    EXPECT_THAT(ended.output, AllOf(HasSubstr("the text " + text_ + said), Not(HasSubstr("SIGBUS"))));
  }
};

TEST_F(CarelessPeople, CutTheTextThatATrainerReads) {
  expect_refusal(disturb([&] { std::filesystem::resize_file(text_, 100); }),
                 " became shorter while it was read");
}

TEST_F(CarelessPeople, EmptyTheTextThatATrainerReads) {
  expect_refusal(disturb([&] { std::filesystem::resize_file(text_, 0); }),
                 " became shorter while it was read");
}

TEST_F(CarelessPeople, WriteOverTheTextThatATrainerReads) {
  const std::string other(sample_text().size(), 'x');

  const auto ended = disturb([&] { std::ofstream(text_, std::ios::in | std::ios::out) << other; });

  expect_refusal(ended, " was overwritten while it was read");
}

TEST_F(CarelessPeople, StartASecondJobInADirectoryOfCheckpoints) {
  const auto id = fmt::format("first-{}", getpid());
  const auto saves = folder_.path("saves");
  const std::vector<std::string> saving{"--learning-rate", "0.001", "--checkpoints", saves,
                                        "--save-every",    "5"};
  const GptJob first{2, 1'000'000, {"--rdzv-id", id}, saving};
  CommandResult refused;
  const auto has_refused_another = [&](int) {
    if (count_checkpoints(saves) == 0) return false;
    refused = run_command(gpt_command({1, 10, {}, saving}, text_, folder_.path("second")), seconds(60));
    return true;
  };

  const auto ended =
      run_and_signal(gpt_command(first, text_, folder_.path("first")), id, 0, has_refused_another, SIGKILL);

  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, AllOf(HasSubstr(saves + " is being written by job " + id),
                                    HasSubstr("give another directory, or end the other job first")));
  EXPECT_THAT(ended.result.output, AllOf(HasSubstr("SIGKILL"), Not(HasSubstr("another"))));
  const auto after = run_command(gpt_command({1, 5, {}, saving}, text_, folder_.path("third")), seconds(60));
  EXPECT_THAT(after.output, Not(HasSubstr("is being written"))) << "the owner is dead";
}

class EarlySignals : public testing::TestWithParam<const char*> {};

TEST_P(EarlySignals, EndNoProgramThatIsJustBeginning) {
  if (is_sanitized()) GTEST_SKIP() << "their libraries must be the first";

  const auto ended =
      run_command({"/usr/bin/env", "LD_PRELOAD=" RAISES_USR1, GetParam(), "--help"}, seconds(60));

  EXPECT_EQ(ended.exit_code, 0) << ended.output;
}

INSTANTIATE_TEST_SUITE_P(Programs, EarlySignals, testing::Values(TROUPE_BINARY, GPT_BINARY));

}  // namespace
}  // namespace troupe::tests
