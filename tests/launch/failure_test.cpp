#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "core/random.hpp"
#include "tests/launch/running_launcher.hpp"

namespace troupe::apps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

// Each rank leaves a segment, a child in its group and one in a session of its own.
constexpr const char* kMessyRank =
    "touch /dev/shm/troupe-$TROUPE_JOB_ID-1-test.$RANK; sleep 1000 & setsid sleep 1000 & echo pid $$; wait";

TEST(LaunchFailure, SigkilledRankIsReportedFirstFiftyTimesWithoutLeftovers) {
  const core::CounterRandom random(2024, "kills");
  for (std::uint64_t round = 0; round < 50 && !::testing::Test::HasFailure(); ++round) {
    const int victim = static_cast<int>(random.below(3, 2 * round));
    SCOPED_TRACE(::testing::Message() << "round " << round << ", rank " << victim);
    RunningLauncher launcher({"--standalone", "--nproc-per-node", "3", "sh", "-c", kMessyRank});
    ASSERT_TRUE(eventually([&] { return pids_in(launcher.out()).contains(victim); }));
    eventually([] { return false; }, milliseconds(random.below(20, 2 * round + 1)));

    const pid_t pid = pids_in(launcher.out()).at(victim);
    ::kill(pid, SIGKILL);
    const Outcome outcome = launcher.wait();

    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("first failure: rank " + std::to_string(victim) + " (pid " +
                                       std::to_string(pid) + "): SIGKILL"));
    EXPECT_TRUE(launcher.processes().empty()) << outcome.err;
    EXPECT_TRUE(launcher.segments().empty()) << launcher.segments().front();
  }
}

TEST(LaunchFailure, ARankStoppedAfterOthersHaveEndedGoesOn) {
  const auto outcome = launch({"--standalone", "--nproc-per-node", "2", "sh", "-c",
                               "[ $RANK = 0 ] || sh -c 'kill -STOP $$; echo it went on'; exit $?"});

  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] it went on"));
  EXPECT_THAT(outcome.err, HasSubstr("] rank 1 (pid "));
  EXPECT_THAT(outcome.err, HasSubstr("was stopped (SIGSTOP) for seconds after others had ended well"));
}

TEST(LaunchFailure, NothingSurvivesALauncherThatIsSigkilled) {
  RunningLauncher launcher({"--standalone", "--nproc-per-node", "3", "sh", "-c", kMessyRank});
  ASSERT_TRUE(launcher.wait_for_lines(3));
  ASSERT_GE(launcher.processes().size(), 9U);

  launcher.signal(SIGKILL);
  const Outcome outcome = launcher.wait();

  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return launcher.processes().empty(); }, seconds(5)));
  EXPECT_TRUE(launcher.segments().empty()) << launcher.segments().front();
}

/// Processes without an environment, which no mark leads to: `sleep <seconds>`, each test with seconds of its
/// own. They are not to outlive it.
class Unmarked {
 public:
  explicit Unmarked(int thousandths)
      : seconds_(std::to_string(getpid()) + "." + std::to_string(thousandths)) {}
  ~Unmarked() {
    for (pid_t pid : processes()) ::kill(pid, SIGKILL);
  }

  std::string command() const { return "env -i sleep " + seconds_; }
  std::vector<pid_t> processes() const {
    using namespace std::string_literals;
    std::vector<pid_t> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      // That of a zombie is empty.
      const auto words = read_file(entry.path() / "cmdline");
      if (words == "sleep\0"s + seconds_ + "\0"s) found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }

 private:
  std::string seconds_;
};

// The guard finds what is marked; this is for what is not.
TEST(LaunchFailure, RankWithoutAnEnvironmentDiesWithASigkilledLauncher) {
  const Unmarked unmarked(100);
  RunningLauncher launcher(
      {"--standalone", "--nproc-per-node", "2", "sh", "-c", "exec " + unmarked.command()});
  ASSERT_TRUE(eventually([&] { return unmarked.processes().size() == 2; }));

  launcher.signal(SIGKILL);
  launcher.wait();

  EXPECT_TRUE(eventually([&] { return unmarked.processes().empty(); }, seconds(5)));
}

TEST(LaunchFailure, ChildWithoutAnEnvironmentDiesWithItsRank) {
  for (int signal : {SIGUSR1, SIGUSR2, SIGKILL}) {
    SCOPED_TRACE(::testing::Message() << "signal " << signal);
    const Unmarked unmarked(200);
    RunningLauncher launcher(
        {"--standalone", "sh", "-c",
         "trap 'exit 0' USR1; trap 'exit 1' USR2; " + unmarked.command() + " & echo pid $$; wait"});
    ASSERT_TRUE(launcher.wait_for_lines(1));
    ASSERT_TRUE(eventually([&] { return unmarked.processes().size() == 1; }));

    ::kill(pids_in(launcher.out()).at(0), signal);
    const Outcome outcome = launcher.wait();

    EXPECT_EQ(outcome.exit_code, signal == SIGUSR1 ? 0 : 1);
    EXPECT_TRUE(eventually([&] { return unmarked.processes().empty(); }, seconds(5)));
  }
}

TEST(LaunchFailure, RankThatIgnoresSigtermIsKilledAfterTheTimeout) {
  const Outcome outcome =
      launch({"--standalone", "--nproc-per-node", "2", "--term-timeout", "0.2", "sh", "-c",
              "if [ $RANK = 0 ]; then trap '' TERM; echo deaf; while :; do sleep 1000; done; fi; exit 7"});

  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("first failure: rank 1"));
  EXPECT_THAT(outcome.err, HasSubstr("stopped"));
}

TEST(LaunchFailure, AStoppedRankIsEndedToo) {
  RunningLauncher launcher({"--standalone", "--nproc-per-node", "2", "sh", "-c",
                            "echo pid $$; if [ $RANK = 0 ]; then kill -STOP $$; fi; sleep 1000"});
  ASSERT_TRUE(launcher.wait_for_lines(2));

  ::kill(pids_in(launcher.out()).at(1), SIGKILL);

  EXPECT_EQ(launcher.wait(seconds(5)).exit_code, 1);
}

TEST(LaunchFailure, SummaryShowsFirstRanksLastLinesAndErrorFile) {
  const Outcome outcome = launch(
      {"--standalone", "--nproc-per-node", "2", "sh", "-c",
       "if [ $RANK = 1 ]; then echo cannot read shard 7 >&2; "
       "echo '{\"message\": {\"message\": \"shard 7 is torn\", \"extraInfo\": {\"timestamp\": \"1\"}}}' > "
       "$TORCHELASTIC_ERROR_FILE; exit 5; fi; sleep 1000"});

  EXPECT_THAT(outcome.err, HasSubstr("first failure: rank 1"));
  EXPECT_THAT(outcome.err, HasSubstr("| cannot read shard 7"));
  EXPECT_THAT(outcome.err, HasSubstr("error: shard 7 is torn"));
}

TEST(LaunchFailure, GangRestartsAsOftenAsAskedInCleanPlaces) {
  const Outcome outcome =
      launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "2", "--restart-backoff", "0.01",
              "sh", "-c",
              "if ls /dev/shm/troupe-$TROUPE_JOB_ID-* 2>/dev/null; then echo DIRTY; fi; touch "
              "/dev/shm/troupe-$TROUPE_JOB_ID-$TROUPE_GENERATION-x.$RANK; [ $RANK = 0 ] || sleep 1000; "
              "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS generation "
              "$TROUPE_GENERATION; exit 1"});

  EXPECT_EQ(outcome.exit_code, 1);
  for (const char* n : {"0", "1", "2"}) {
    EXPECT_THAT(outcome.out, HasSubstr(std::string("try ") + n + " of 2 generation " + n));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("try 3")));
  EXPECT_THAT(outcome.err, HasSubstr("all 2 restarts are used up"));
}

// Events of a generation that has ended must not be taken for events of the next one.
TEST(LaunchFailure, RestartsWithoutAPauseAreCountedRight) {
  for (int round = 0; round < 20 && !::testing::Test::HasFailure(); ++round) {
    const Outcome outcome = launch(
        {"--standalone", "--max-restarts", "5", "--restart-backoff", "0", "sh", "-c", "echo run; exit 3"});

    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(lines_of(outcome.out).size(), 6U) << outcome.err;
  }
}

TEST(LaunchFailure, JobThatSucceedsAfterARestartReturnsZero) {
  const Outcome outcome = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "sh", "-c",
                                  "[ $TROUPE_GENERATION = 1 ] || exit 1"});

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("restart 1 of 3"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("restart 2")));
}

TEST(LaunchFailure, JobThatCommitsNothingMoreStopsRestarting) {
  const Outcome outcome = launch({"--standalone", "--max-restarts", "50", "--restart-backoff", "0", "sh",
                                  "-c", "echo 17 > $TROUPE_PROGRESS_FILE; echo run; exit 1"});

  EXPECT_EQ(lines_of(outcome.out).size(), 3U);
  EXPECT_THAT(outcome.err, HasSubstr("no progress: 3 failures in a row after step 17"));
}

struct CodeCase {
  int worker;
  int launcher;

  friend std::ostream& operator<<(std::ostream& out, const CodeCase& of) {
    return out << "worker " << of.worker << ", launcher " << of.launcher;
  }
};

class LaunchExitCode : public ::testing::TestWithParam<CodeCase> {};

TEST_P(LaunchExitCode, FollowsTheWorkers) {
  const auto [worker, launcher] = GetParam();
  const Outcome outcome = launch({"--standalone", "--max-restarts", "1", "--restart-backoff", "0", "sh", "-c",
                                  "echo run; exit " + std::to_string(worker)});

  EXPECT_EQ(outcome.exit_code, launcher);
  const bool restarted = launcher == 1;
  EXPECT_EQ(lines_of(outcome.out).size(), restarted ? 2U : 1U);
}

INSTANTIATE_TEST_SUITE_P(Codes, LaunchExitCode,
                         ::testing::Values(CodeCase{0, 0}, CodeCase{1, 1}, CodeCase{3, 1}, CodeCase{75, 75},
                                           CodeCase{93, 1}, CodeCase{97, 97}, CodeCase{137, 1}),
                         [](const auto& instance) { return "Code" + std::to_string(instance.param.worker); });

// Says what it got and ends in good order, as a trainer that saves would.
constexpr const char* kPoliteRank =
    "for s in TERM INT USR1 USR2; do trap \"echo got $s; exit 0\" $s; done; echo ready; sleep 1000 & wait";

class LaunchSignal : public ::testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(LaunchSignal, IsForwardedToEveryRank) {
  const auto& [signal, name] = GetParam();
  RunningLauncher launcher({"--standalone", "--nproc-per-node", "2", "sh", "-c", kPoliteRank});
  ASSERT_TRUE(launcher.wait_for_lines(2));

  launcher.signal(signal);
  const Outcome outcome = launcher.wait();

  const bool stops = signal != SIGUSR1 && signal != SIGUSR2;
  EXPECT_EQ(outcome.exit_code, stops ? 128 + signal : 0);
  EXPECT_THAT(outcome.out, HasSubstr(std::string("[rank 0] got ") + name));
  EXPECT_THAT(outcome.out, HasSubstr(std::string("[rank 1] got ") + name));
  EXPECT_TRUE(launcher.processes().empty());
}

INSTANTIATE_TEST_SUITE_P(Signals, LaunchSignal,
                         ::testing::Values(std::pair(SIGTERM, "TERM"), std::pair(SIGINT, "INT"),
                                           std::pair(SIGHUP, "TERM"), std::pair(SIGUSR1, "USR1"),
                                           std::pair(SIGUSR2, "USR2")),
                         [](const auto& instance) {
                           return "Signal" + std::to_string(instance.param.first);
                         });

TEST(LaunchSignals, RankSignalEndsNoRankThatIgnoresIt) {
  RunningLauncher launcher({"--standalone", "--nproc-per-node", "2", "sleep", "1000"});
  ASSERT_TRUE(eventually([&] { return launcher.processes().size() == 4; }))
      << "with the launcher and its guard";

  launcher.signal(SIGUSR1);

  EXPECT_TRUE(
      eventually([&] { return launcher.err().find("rank 1 does not handle SIGUSR1") != std::string::npos; }));
  EXPECT_EQ(launcher.processes().size(), 4U);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait().exit_code, 128 + SIGTERM);
}

TEST(LaunchSignals, EarlyOnesEndNobody) {
  for (int i = 0; i < 20; ++i) {
    RunningLauncher launcher({"--standalone", "--nproc-per-node", "2", TROUPE_BINARY, "doctor"});
    ASSERT_TRUE(eventually([&] { return !launcher.err().empty(); }));
    for (int sent = 0; sent < 100 && ::kill(launcher.pid(), SIGUSR1) == 0 && launcher.out().empty(); ++sent) {
      ::poll(nullptr, 0, 1);
    }

    EXPECT_EQ(launcher.wait().exit_code, 0) << launcher.err();
  }
}

TEST(LaunchFailure, TooFewDescriptorsAreAnErrorWithAdvice) {
  for (rlim_t descriptors = 4; descriptors < 32; ++descriptors) {
    RunningLauncher launcher({"--standalone", "--nproc-per-node", "2", "true"}, {}, [&] {
      for (int fd = 3; fd < 64; ++fd) ::close(fd);
      const rlimit limit{descriptors, descriptors};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    });

    const Outcome outcome = launcher.wait();

    EXPECT_LE(outcome.exit_code, 2) << descriptors << ": " << outcome.err;
    if (outcome.exit_code == 0) continue;
    EXPECT_THAT(outcome.err, HasSubstr("open files")) << descriptors;
  }
}

TEST(LaunchSignals, SecondInterruptDoesNotAwaitTheTermTimeout) {
  RunningLauncher launcher({"--standalone", "--term-timeout", "600", "sh", "-c",
                            "trap 'echo not yet' INT; echo ready; while :; do sleep 1000 & wait; done"});
  ASSERT_TRUE(launcher.wait_for_lines(1));

  launcher.signal(SIGINT);
  ASSERT_TRUE(launcher.wait_for_lines(2));
  launcher.signal(SIGINT);

  EXPECT_EQ(launcher.wait(seconds(5)).exit_code, 128 + SIGINT);
}

}  // namespace
}  // namespace troupe::apps
