// Programs that get less and less of something that a shell can limit: they do without, or end in a sentence.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/processes/gpt_job.hpp"
#include "tests/support/child.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::tests {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::seconds kNoHang{60};

class Scarcity : public testing::Test {
 protected:
  void SetUp() override {
    if (is_sanitized()) GTEST_SKIP() << "sanitizers need all the memory and threads there are";
  }

  static CommandResult run_limited(const std::string& limit, int amount,
                                   const std::vector<std::string>& command) {
    std::vector<std::string> words{
        "/bin/sh", "-c", fmt::format("ulimit -c 0; ulimit {} {}; exec \"$@\"", limit, amount), "sh"};
    words.insert(words.end(), command.begin(), command.end());
    return run_command(words, kNoHang);
  }

  /// 127: the loader had no memory for the libraries, and says which.
  static void expect_a_sentence(const CommandResult& ended, const std::string& name) {
    EXPECT_THAT(ended.exit_code, AnyOf(Eq(0), Eq(1), Eq(2), Eq(127))) << name << ": " << ended.output;
    EXPECT_THAT(ended.output, AllOf(Not(HasSubstr("terminate")), Not(HasSubstr("SIGABRT")),
                                    Not(HasSubstr("SIGSEGV")), Not(HasSubstr("SIGKILL"))))
        << name;
    if (ended.exit_code != 0) {
      EXPECT_THAT(ended.output, Not(testing::IsEmpty())) << name;
    }
  }

  ScratchFolder folder_;
  std::string text_ = write_sample_text(folder_);
};

TEST_F(Scarcity, OfMemoryEndsToolsInASentence) {
  const GptJob saving{1, 2, {}, {"--checkpoints", folder_.path("saves"), "--save-every", "2"}};
  ASSERT_EQ(run_command(gpt_command(saving, text_, folder_.path("run")), kNoHang).exit_code, 0);
  const std::vector<std::vector<std::string>> commands{
      {TROUPE_BINARY, "simulate", "--ranks", "512", "--steps", "2"},
      {TROUPE_BINARY, "checkpoint", "verify", folder_.path("saves")},
      {TROUPE_BINARY, "launch", "--standalone", "--nproc-per-node", "2", "--", "/bin/true"}};

  for (const auto& command : commands) {
    for (const int kib : {15'000, 20'000, 40'000, 100'000, 300'000}) {
      expect_a_sentence(run_limited("-v", kib, command), fmt::format("{} with {} KiB", command[1], kib));
    }
  }
}

TEST_F(Scarcity, OfMemoryEndsTrainersInASentence) {
  for (const int ranks : {1, 2}) {
    for (const int kib : {60'000, 210'000, 300'000, 400'000}) {
      const auto output = folder_.path(fmt::format("run{}-{}", ranks, kib));

      const auto ended = run_limited("-v", kib, gpt_command({ranks, 2, {}, {}}, text_, output));

      expect_a_sentence(ended, fmt::format("{} ranks with {} KiB", ranks, kib));
    }
  }
}

/// RLIMIT_NPROC counts all processes of a user, and binds nobody who is root.
TEST_F(Scarcity, OfThreadsEndsTrainersInASentence) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody who has no other processes";
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  for (const int threads : {6, 8, 12, 16, 20, 24, 32, 48}) {
    const auto script = fmt::format(
        "cd {}; ulimit -c 0; ulimit -u {}; exec setpriv --reuid 65533 --clear-groups env TMPDIR=. \"$@\"",
        folder_.path(), threads);
    auto words = gpt_command({3, 4, {}, {}}, text_, folder_.path(fmt::format("run{}", threads)));
    words.insert(words.begin(), {"/bin/sh", "-c", script, "sh"});

    const auto ended = run_command(words, kNoHang);

    expect_a_sentence(ended, fmt::format("{} threads", threads));
    if (ended.exit_code != 0) {
      EXPECT_THAT(ended.output, HasSubstr("ulimit -u")) << threads;
    }
  }
}

TEST_F(Scarcity, OfDescriptorsEndsTrainersInASentence) {
  for (const int descriptors : {8, 12, 16, 24, 32}) {
    const auto output = folder_.path(fmt::format("run{}", descriptors));

    const auto ended = run_limited("-n", descriptors, gpt_command({2, 2, {}, {}}, text_, output));

    expect_a_sentence(ended, fmt::format("{} descriptors", descriptors));
  }
}

}  // namespace
}  // namespace troupe::tests
