// What careless people do to programs that run: cut their files, ask them before they can answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
