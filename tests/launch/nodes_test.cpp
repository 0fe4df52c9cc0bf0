#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "apps/troupe/launch/ports.hpp"
#include "core/random.hpp"
#include "tests/launch/running_nodes.hpp"

namespace troupe::apps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Each rank says its pid, and ends when it is asked to.
constexpr const char* kWaits = "echo pid $$; while :; do sleep 0.05; done";

TEST(LaunchNodes, RanksAreNumberedByNodesOfAnySizes) {
  RunningNodes job({"--rdzv-id", "both", "--nproc-per-node", "2", "sh", "-c",
                    "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
                    "$ROLE_RANK/$ROLE_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RUN_ID"});
  const auto outcomes = job.wait();

  const std::string rest = " 127.0.0.1 both";
  for (const int node : {0, 1}) {
    const auto& [code, out, err] = outcomes[static_cast<std::size_t>(node)];
    EXPECT_EQ(code, 0) << err;
    for (const int local_rank : {0, 1}) {
      const std::string rank = std::to_string(2 * node + local_rank);
      const std::string local = std::to_string(local_rank);
      EXPECT_THAT(out, HasSubstr("[rank " + rank + "] " + rank + "/4 " + local + "/2 " +
                                 std::to_string(node) + "/2 " + rank + "/4" + rest));
    }
    EXPECT_THAT(err, HasSubstr("4 ranks of sh on 2 nodes: "));
  }
  const std::string job_name = job.at(0).job();
  EXPECT_THAT(outcomes[1].err, HasSubstr("job " + job_name + ": 4 ranks"));
}

TEST(LaunchNodes, FindTheirNumbersThemselvesAndMayDifferInRanks) {
  const int free_port = ReservedPort::any()->number();
  const auto words = [&](const char* ranks) {
    return std::vector<std::string>{"--nnodes",
                                    "2",
                                    "--master-port",
                                    std::to_string(free_port),
                                    "--nproc-per-node",
                                    ranks,
                                    "sh",
                                    "-c",
                                    "echo $RANK of $WORLD_SIZE, $LOCAL_WORLD_SIZE here"};
  };
  RunningLauncher first(words("1"));
  ASSERT_TRUE(
      eventually([&] { return first.err().find("waiting for 1 of 2 nodes; here is") != std::string::npos; }));
  RunningLauncher second(words("2"));
  const Outcome one = first.wait();
  const Outcome two = second.wait();

  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_THAT(one.out, HasSubstr("0 of 3, 1 here"));
  EXPECT_THAT(two.out, AllOf(HasSubstr("1 of 3, 2 here"), HasSubstr("2 of 3, 2 here")));
}

TEST(LaunchNodes, FailureOnOneEndsBothAndIsToldAlike) {
  RunningNodes job(
      {"--nproc-per-node", "2", "sh", "-c",
       "echo ready; if [ $RANK = 3 ]; then sleep 0.2; echo the reason >&2; exit 7; fi; sleep 1000"});
  const auto outcomes = job.wait();

  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err,
                ::testing::ContainsRegex("rank 3 on .* failed: exit code 7; stopping the others"));
    EXPECT_THAT(outcome.err, ::testing::ContainsRegex("first failure: rank 3 on .*: exit code 7"));
    EXPECT_THAT(outcome.err, HasSubstr("| the reason"));
    EXPECT_THAT(outcome.err, HasSubstr("ends with exit code 1: no restart was asked for"));
  }
  EXPECT_FALSE(last_words(outcomes[0]).empty());
  EXPECT_EQ(last_words(outcomes[0]), last_words(outcomes[1]));
}

TEST(LaunchNodes, SigkilledRankIsNamedFirstOnBoth) {
  const core::CounterRandom random(2026, "nodes");
  for (std::uint64_t round = 0; round < 6 && !::testing::Test::HasFailure(); ++round) {
    const int victim = static_cast<int>(round % 4);
    SCOPED_TRACE(::testing::Message() << "round " << round << ", rank " << victim);
    RunningNodes job({"--nproc-per-node", "2", "sh", "-c", kWaits});
    ASSERT_TRUE(job.wait_for_lines(2));
    eventually([] { return false; }, milliseconds(random.below(50, round)));

    ::kill(pids_in(job.at(victim / 2).out()).at(victim), SIGKILL);

    for (const Outcome& outcome : job.wait()) {
      EXPECT_EQ(outcome.exit_code, 1);
      EXPECT_THAT(outcome.err, ::testing::ContainsRegex("first failure: rank " + std::to_string(victim) +
                                                        " on .*: SIGKILL"));
    }
  }
}

TEST(LaunchNodes, AFailureRestartsTheRanksOfBoth) {
  RunningNodes job({"--max-restarts", "2", "--nproc-per-node", "2", "sh", "-c",
                    "echo start $TROUPE_GENERATION; [ $RANK != 2 ] || [ $TROUPE_GENERATION = 2 ] || exit 5; "
                    "[ $TROUPE_GENERATION = 2 ] || sleep 1000"});
  const auto outcomes = job.wait();

  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("restart 2 of 2"));
    EXPECT_THAT(outcome.out, HasSubstr("start 2"));
  }
}

TEST(LaunchNodes, ASigkilledLauncherIsNamedAndEndsTheOther) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(::testing::Message() << "node " << victim);
    RunningNodes job({"--nproc-per-node", "2", "sh", "-c", kWaits});
    ASSERT_TRUE(job.wait_for_lines(2));

    job.at(victim).signal(SIGKILL);
    const auto outcomes = job.wait();

    const Outcome& other = outcomes[static_cast<std::size_t>(1 - victim)];
    EXPECT_EQ(other.exit_code, 1);
    EXPECT_THAT(other.err, HasSubstr("was lost: the connection was closed"));
    if (victim == 1) {
      EXPECT_THAT(other.err, ::testing::ContainsRegex("first failure: rank 2 on .*: lost with its node"));
      EXPECT_THAT(other.err, Not(HasSubstr("first failure: rank 0")));
    }
  }
}

TEST(LaunchNodes, StalledLauncherIsLostWithinItsPatience) {
  RunningNodes job({"--rdzv-conf", "join_timeout=30,keep_alive_interval=0.1", "--nproc-per-node", "2", "sh",
                    "-c", kWaits});
  ASSERT_TRUE(job.wait_for_lines(2));

  job.at(1).signal(SIGSTOP);
  const Outcome leader = job.at(0).wait();
  job.at(1).signal(SIGCONT);
  const Outcome other = job.at(1).wait();

  EXPECT_EQ(leader.exit_code, 1);
  EXPECT_THAT(leader.err, Not(HasSubstr("has no effect")));
  EXPECT_THAT(leader.err, HasSubstr("(node 1) at 127.0.0.1 was lost: nothing was heard of it for 0.5 s"));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_TRUE(eventually([&] { return job.at(1).processes().empty(); }));
}

TEST(LaunchNodes, AnotherLauncherTakesThePlaceOfALostOne) {
  RunningNodes job({"--max-restarts", "3", "--nproc-per-node", "2", "sh", "-c",
                    "echo pid $$; [ $TROUPE_GENERATION = 1 ] || sleep 1000"});
  ASSERT_TRUE(job.wait_for_lines(2));

  job.at(1).signal(SIGKILL);
  job.at(1).wait();
  ASSERT_TRUE(eventually([&] { return job.at(0).err().find("to come back") != std::string::npos; }));
  job.start(1);

  for (const Outcome& outcome : job.wait()) EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(LaunchNodes, AnotherLauncherContinuesNodeZerosJobByItsJournal) {
  const TemporaryDirectory folder;
  const auto journal = folder.path() / "journal";
  RunningNodes job({"--journal", journal.string(), "--nproc-per-node", "2", "sh", "-c",
                    "echo pid $$; [ $TROUPE_GENERATION = 1 ] || sleep 1000"});
  ASSERT_TRUE(job.wait_for_lines(2));
  const auto name = job.at(0).job();
  const auto busy =
      launch({"--nnodes", "2", "--node-rank", "0", "--master-port",
              std::to_string(ReservedPort::any()->number()), "--journal", journal.string(), "true"});
  EXPECT_THAT(busy.err, HasSubstr("another launcher has " + journal.string()));

  job.at(0).signal(SIGKILL);
  job.at(0).wait();
  job.start(0);

  for (const Outcome& outcome : job.wait()) EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(job.at(0).job(), name);
  EXPECT_FALSE(std::filesystem::exists(journal)) << "the job has ended";
}

TEST(LaunchNodes, SuccessorRestartsProgramsThatDoNotStay) {
  const TemporaryDirectory folder;
  RunningNodes job({"--journal", (folder.path() / "journal").string(), "--max-restarts", "9", "sh", "-c",
                    "echo pid $$; [ $TROUPE_GENERATION = 1 ] || sleep 1000"});
  ASSERT_TRUE(job.wait_for_lines(1));

  job.at(0).signal(SIGKILL);
  job.at(0).wait();
  job.start(0);

  for (const Outcome& outcome : job.wait()) EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(LaunchNodes, LateNodeIsLeftAloneByProgramsThatLeave) {
  RunningNodes job({"--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.2,join_timeout=30", "sh", "-c",
                    "echo $RANK of $WORLD_SIZE; sleep 1.5"},
                   {}, 1);
  ASSERT_TRUE(job.at(0).wait_for_lines(1));

  job.start(1);

  const auto outcomes = job.wait();
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcomes[0].out, HasSubstr("0 of 1"));
  EXPECT_THAT(outcomes[0].err, HasSubstr("comes to the job, as node 1"));
  EXPECT_EQ(outcomes[1].out, "");
}

TEST(LaunchNodes, AJournalBelongsToOneJob) {
  const TemporaryDirectory folder;
  const auto journal = folder.path() / "journal";
  const auto started = [&](const std::string& text) {
    std::ofstream(journal) << text;
    return launch({"--nnodes", "2", "--node-rank", "0", "--master-port",
                   std::to_string(ReservedPort::any()->number()), "--journal", journal.string(), "true"})
        .err;
  };

  EXPECT_THAT(started("no journal"), HasSubstr("holds no job, but \"no journal\""));
  EXPECT_THAT(started("{}"), HasSubstr("holds no job"));
  EXPECT_THAT(started(R"({"job": "other", "secret": "", "program": ["false"], "generation": 0, "restarts": 0,
                           "ranks": [1], "spares": [0], "slots": [0]})"),
              HasSubstr("belongs to job other, whose command begins with false"));
  EXPECT_THAT(launch({"--journal", journal.string(), "true"}).err, HasSubstr("is for jobs of several nodes"));
}

TEST(LaunchNodes, AnotherLauncherMayPrecedeTheLostGenerationsEnd) {
  RunningNodes job({"--max-restarts", "3", "sh", "-c",
                    "[ $TROUPE_GENERATION = 0 ] || exit 0; trap 'sleep 0.7; exit 1' TERM; echo ready; "
                    "while :; do sleep 0.05; done"});
  ASSERT_TRUE(job.wait_for_lines(1));

  job.at(1).signal(SIGKILL);
  job.at(1).wait();
  job.start(1);

  for (const Outcome& outcome : job.wait()) EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(LaunchNodes, ASignalToAnyEndsBothWithItsCode) {
  for (const int node : {0, 1}) {
    RunningNodes job({"--nproc-per-node", "2", "sh", "-c", kWaits});
    ASSERT_TRUE(job.wait_for_lines(2));

    job.at(node).signal(SIGINT);

    for (const Outcome& outcome : job.wait()) {
      EXPECT_EQ(outcome.exit_code, 128 + SIGINT) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr("stopped by SIGINT"));
    }
  }
}

TEST(LaunchNodes, ASignalToAllIsOneRequest) {
  // Twice from one launcher would kill at once; these ranks need a while.
  RunningNodes job({"--nproc-per-node", "1", "sh", "-c",
                    "trap 'sleep 0.3; echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job.wait_for_lines(1));

  for (const int node : {0, 1}) job.at(node).signal(SIGINT);

  for (const Outcome& outcome : job.wait()) {
    EXPECT_EQ(outcome.exit_code, 128 + SIGINT) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("saved"));
  }
}

TEST(LaunchNodes, LogsAndReportAreOnEachNode) {
  const TemporaryDirectory logs;
  RunningNodes job({"--log-dir", logs.path().string(), "--tee", "3", "--nproc-per-node", "2", "sh", "-c",
                    "echo hello from $RANK; [ $RANK != 3 ] || { sleep 0.3; exit 4; }"});
  job.wait();
  const auto folder = [&](int node) {
    return logs.path() / (job.at(0).job() + (node == 0 ? "" : "_node_" + std::to_string(node)));
  };

  EXPECT_EQ(read_file(folder(0) / "attempt_0/1/stdout.log"), "hello from 1\n");
  EXPECT_EQ(read_file(folder(1) / "attempt_0/0/stdout.log"), "hello from 2\n");
  EXPECT_EQ(read_file(folder(0) / "job_report.json"), read_file(folder(1) / "job_report.json"));
  EXPECT_THAT(read_file(folder(1) / "job_report.json"), HasSubstr("\"world_size\": 4"));
}

/// Connections of somebody who says nothing, of which a hundred stay.
class SilentCrowd {
 public:
  bool come(int port) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<std::uint16_t>(port));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int one = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // Nothing of them stays in the system's tables.
    const linger at_once{1, 0};
    ::setsockopt(one, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    sockets_.push_back(one);
    if (sockets_.size() > kStay) leave();
    return ::connect(one, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0;
  }
  ~SilentCrowd() {
    while (!sockets_.empty()) leave();
  }

 private:
  static constexpr std::size_t kStay = 100;
  void leave() {
    ::close(sockets_.front());
    sockets_.pop_front();
  }
  std::deque<int> sockets_;
};

TEST(LaunchNodes, TenThousandWhoSayNothingKeepNoNodeOut) {
  RunningNodes job({"--nproc-per-node", "1", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"}, {}, 1);
  ASSERT_TRUE(eventually(
      [&] { return job.at(0).err().find("waiting for 1 of 2 nodes; here is") != std::string::npos; }));
  SilentCrowd crowd;
  for (int i = 0; i < 5'000; ++i) ASSERT_TRUE(crowd.come(job.port()));
  const std::filesystem::path descriptors = fmt::format("/proc/{}/fd", job.at(0).pid());
  const auto open = std::distance(std::filesystem::directory_iterator(descriptors), {});

  job.start(1);
  // More come with the other launcher, until the job has ended.
  for (int i = 0; i < 5'000 && crowd.come(job.port()); ++i) continue;
  const auto outcomes = job.wait();

  EXPECT_LE(open, 64 + 32) << "at most 64 strangers are heard out";
  for (const auto& [code, out, err] : outcomes) {
    EXPECT_EQ(code, 0) << err;
    EXPECT_THAT(out, HasSubstr(" of 2"));
  }
  EXPECT_LE(lines_of(outcomes[0].err).size(), 40U) << "each stranger would be a line";
  EXPECT_THAT(outcomes[0].err, AllOf(HasSubstr("others like it are only counted"),
                                     HasSubstr("1000 connections were not launchers of this job")));
}

TEST(LaunchNodes, MissingOneIsNamedWhenTimeIsUp) {
  const int free_port = ReservedPort::any()->number();
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port);
  const Outcome first = launch({"--nnodes", "3", "--node-rank", "0", "--rdzv-endpoint", endpoint,
                                "--rdzv-conf", "join_timeout=0.3", "true"});
  const Outcome second = launch({"--nnodes", "3", "--node-rank", "1", "--rdzv-endpoint", endpoint,
                                 "--rdzv-conf", "join_timeout=0.3", "true"});

  EXPECT_EQ(first.exit_code, 1);
  EXPECT_THAT(first.err, HasSubstr("not all nodes came within 0.3 s: waiting for 2 of 3 nodes; here is"));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr("was not found within 0.3 s"));
}

/// A launcher that cannot be the second node of a job whose first waits.
struct Misfit {
  std::string name;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  std::string reason;
};
std::ostream& operator<<(std::ostream& out, const Misfit& misfit) {
  return out << misfit.name;
}

class LaunchMisfit : public ::testing::TestWithParam<Misfit> {};

TEST_P(LaunchMisfit, IsRefusedWithTheReasonWhileTheJobWaits) {
  const std::string port = std::to_string(ReservedPort::any()->number());
  RunningLauncher first(
      {"--nnodes", "2", "--node-rank", "0", "--master-port", port, "--rdzv-id", "run", "true"},
      {"TROUPE_JOB_TOKEN=" + std::string(64, '1')});
  ASSERT_TRUE(eventually([&] { return first.err().find("waiting for 1 of 2") != std::string::npos; }));
  std::vector<std::string> words{"--master-port", port, "--rdzv-conf", "join_timeout=1"};
  words.insert(words.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  words.emplace_back("true");
  auto environment = GetParam().environment;
  environment.insert(environment.begin(), "TROUPE_JOB_TOKEN=" + std::string(64, '1'));
  const Outcome outcome = launch(words, environment);

  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().reason));
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGTERM);
}

INSTANTIATE_TEST_SUITE_P(Nodes, LaunchMisfit,
                         ::testing::Values(Misfit{"OtherNumberOfNodes",
                                                  {"--nnodes", "3", "--node-rank", "1", "--rdzv-id", "run"},
                                                  {},
                                                  "--nnodes 3"},
                                           Misfit{"OtherJob",
                                                  {"--nnodes", "2", "--node-rank", "1", "--rdzv-id", "walk"},
                                                  {},
                                                  "--rdzv-id walk"},
                                           Misfit{"OtherSecret",
                                                  {"--nnodes", "2", "--node-rank", "1", "--rdzv-id", "run"},
                                                  {"TROUPE_JOB_TOKEN=" + std::string(64, '2')},
                                                  "another secret"}),
                         testing::PrintToStringParamName());

TEST(LaunchNodes, OtherCommandsAndSettingsAreNamed) {
  const int free_port = ReservedPort::any()->number();
  const std::string port = std::to_string(free_port);
  RunningLauncher first({"--nnodes", "2", "--node-rank", "0", "--master-port", port, "echo", "one"});
  RunningLauncher second(
      {"--nnodes", "2", "--node-rank", "1", "--master-port", port, "--max-restarts", "3", "echo", "two"});

  for (RunningLauncher* each : {&first, &second}) {
    const Outcome outcome = each->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("(node 1) has \"two\" where node 0 has \"one\", as word 2"));
    EXPECT_THAT(outcome.err, HasSubstr("--max-restarts 3, and node 0 with 0, which counts"));
  }
}

TEST(LaunchNodes, TakeNeitherReadableSecretFilesNorHalfSecrets) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "token";
  std::ofstream(path) << std::string(64, 'a') << "\n";
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  const std::vector<std::string> words{"--nnodes", "2", "--node-rank", "0", "--token-file", path, "true"};
  EXPECT_THAT(launch(words).err, HasSubstr("chmod 600 " + path));

  std::filesystem::permissions(path, std::filesystem::perms(0600));
  std::ofstream(path) << "abc\n";
  EXPECT_THAT(launch(words).err, HasSubstr("64 hexadecimal digits, and holds 3"));
}

}  // namespace
}  // namespace troupe::apps
