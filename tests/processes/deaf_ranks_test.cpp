#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "core/random.hpp"
#include "tests/processes/gpt_job.hpp"
#include "tests/support/environment.hpp"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using tests::GptJob;
using tests::number_in_environment;
using tests::run_and_signal;

/// A rank that does not hear that the job has ended would live until the launcher kills it, which is later
/// than run_command()'s patience: such a test ends by exit code 124.
const std::vector<std::string> kNobodyIsKilled{"--term-timeout", "600"};

/// The rank connects or is connected: it has long taken SIGTERM over, and waits for its peer.
bool forms_a_job(int pid) {
  std::error_code gone;
  std::filesystem::directory_iterator thread(fmt::format("/proc/{}/task", pid), gone);
  for (; !gone && thread != std::filesystem::directory_iterator(); thread.increment(gone)) {
    std::string name;
    std::getline(std::ifstream(thread->path() / "comm"), name);
    if (name == "troupe-network") return true;
  }
  return false;
}

class DeafRanks : public testing::Test {
 protected:
  DeafRanks() : text_(tests::write_sample_text(folder_)) {}

  /// A job that takes SIGTERM for a wish to save and leave.
  GptJob job(int ranks, const std::string& id) const {
    GptJob job{ranks, 20, kNobodyIsKilled, {"--checkpoints", folder_.path(id), "--save-every", "8"}};
    job.launch_options.insert(job.launch_options.end(), {"--rdzv-id", id});
    return job;
  }

  std::vector<std::string> command(const std::string& id, int ranks) const {
    return tests::gpt_command(job(ranks, id), text_, folder_.path(id + "-output"));
  }

  /// Two ranks, of which one never joins.
  std::vector<std::string> command_without(int absent, const std::string& id) const {
    auto words = command(id, 2);
    const auto program = std::find(words.begin(), words.end(), GPT_BINARY);
    const auto script = fmt::format("[ $RANK = {} ] && exec sleep 1000; exec \"$@\"", absent);
    words.insert(program, {"sh", "-c", script, "sh"});
    return words;
  }

  void expect_nothing_left(const std::string& id) {
    EXPECT_TRUE(tests::processes_with("TORCHELASTIC_RUN_ID=" + id).empty());
    EXPECT_TRUE(tests::segments_with(id).empty());
  }

  static std::string unique_id(const std::string& name) { return fmt::format("{}-{}", name, getpid()); }

  tests::ScratchFolder folder_;
  std::string text_;
};

class DeafWhileTheJobForms : public DeafRanks, public testing::WithParamInterface<int> {};

// Rank 0 waits for its peer to join, rank 1 for rank 0's port.
TEST_P(DeafWhileTheJobForms, RankEndsWhenThePeerItAwaitsIsKilled) {
  const int waiting = GetParam();
  const int absent = 1 - waiting;
  const auto id = unique_id(fmt::format("forming{}", waiting));
  const auto waits = [&](int) {
    const int pid = tests::process_of_rank(id, waiting);
    return pid != 0 && forms_a_job(pid);
  };

  const auto killed = run_and_signal(command_without(absent, id), id, absent, waits, SIGKILL);

  EXPECT_TRUE(killed.hit);
  EXPECT_EQ(killed.result.exit_code, 1) << killed.result.output;
  EXPECT_THAT(killed.result.output, HasSubstr(fmt::format("first failure: rank {}", absent)));
  EXPECT_THAT(killed.result.output,
              HasSubstr(fmt::format("this rank ends with its job: rank {} failed: SIGKILL", absent)));
  EXPECT_THAT(killed.result.output, HasSubstr("exit code 96"));
  expect_nothing_left(id);
}

TEST_P(DeafWhileTheJobForms, ASignalToTheRankEndsIt) {
  const int waiting = GetParam();
  const auto id = unique_id(fmt::format("asked{}", waiting));

  const auto asked = run_and_signal(command_without(1 - waiting, id), id, waiting, forms_a_job, SIGTERM);

  EXPECT_TRUE(asked.hit);
  EXPECT_EQ(asked.result.exit_code, 1) << asked.result.output;
  EXPECT_THAT(asked.result.output, HasSubstr(fmt::format("first failure: rank {}", waiting)));
  expect_nothing_left(id);
}

INSTANTIATE_TEST_SUITE_P(Rank, DeafWhileTheJobForms, testing::Values(0, 1),
                         testing::PrintToStringParamName());

/// TROUPE_KILLS and TROUPE_KILL_SEED choose another number of kills and other moments. TROUPE_KILL_LIMIT_MS
/// is what the slowest may take, for a machine that has nothing else to do.
TEST_F(DeafRanks, AreNotFoundByRandomKills) {
  const auto kills = number_in_environment("TROUPE_KILLS", 24);
  const auto seed = number_in_environment("TROUPE_KILL_SEED", static_cast<std::uint64_t>(getpid()));
  const milliseconds limit(number_in_environment("TROUPE_KILL_LIMIT_MS", 60'000));
  const core::CounterRandom random(seed, "kills");
  std::vector<milliseconds> whole;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    const auto id = unique_id(fmt::format("whole{}", ranks));
    const auto begin = steady_clock::now();
    ASSERT_EQ(tests::run_command(command(id, ranks), std::chrono::seconds(60)).exit_code, 0);
    whole.push_back(std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin));
  }
  std::vector<milliseconds> ends;

  for (std::uint64_t i = 0; i < kills && !HasFailure(); ++i) {
    const int ranks = 2 + static_cast<int>(i % 3);
    const auto victim = static_cast<int>(random.below(static_cast<std::uint32_t>(ranks), 2 * i));
    const auto range = static_cast<std::uint32_t>(whole[i % 3].count() * 1000);
    const std::chrono::microseconds delay(random.below(range, 2 * i + 1));
    SCOPED_TRACE(
        fmt::format("kill {} of rank {} of {} after {} us, seed {}", i, victim, ranks, delay.count(), seed));
    const auto id = unique_id(fmt::format("deaf{}", i));

    const auto killed =
        run_and_signal(job(ranks, id), id, text_, folder_.path(id + "-output"), victim, delay, SIGKILL);

    if (killed.hit && killed.result.exit_code != 0) {
      EXPECT_EQ(killed.result.exit_code, 1) << killed.result.output;
      EXPECT_THAT(killed.result.output, HasSubstr(fmt::format("first failure: rank {} ", victim)));
      ends.push_back(std::chrono::duration_cast<milliseconds>(killed.until_end));
      EXPECT_LE(ends.back().count(), limit.count()) << killed.result.output;
    } else {
      EXPECT_EQ(killed.result.exit_code, 0) << killed.result.output;
    }
    expect_nothing_left(id);
  }

  std::sort(ends.begin(), ends.end());
  EXPECT_GE(ends.size(), kills / 3) << "many kills should find the job";
  if (ends.empty()) return;
  fmt::print("seed {}: {} of {} kills hit; the launcher ended after {} ms (median), {} ms (at most)\n", seed,
             ends.size(), kills, ends[ends.size() / 2].count(), ends.back().count());
}

}  // namespace
}  // namespace troupe
