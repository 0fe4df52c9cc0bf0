#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "apps/troupe/launch/console.hpp"
#include "apps/troupe/launch/lines.hpp"
#include "apps/troupe/launch/rank_log.hpp"
#include "tests/launch/running_launcher.hpp"

namespace troupe::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> assembled(const std::vector<std::string>& pieces, std::size_t cap = 1000) {
  std::vector<std::string> lines;
  LineAssembler assembler([&](std::string_view line) { lines.emplace_back(line); }, cap);
  for (const std::string& piece : pieces) assembler.feed(piece);
  assembler.finish();
  return lines;
}

TEST(LineAssembler, JoinsPiecesAndKeepsEmptyAndUnfinishedLines) {
  EXPECT_THAT(assembled({"a", "b\n\nc", "\nrest"}), ElementsAre("ab", "", "c", "rest"));
}

TEST(LineAssembler, CutsALineAtTheCap) {
  EXPECT_THAT(assembled({"abcdefgh\nx\n"}, 3), ElementsAre("abc", "def", "gh", "x"));
}

TEST(LineAssembler, ShowsAProgressBarAsItsLastState) {
  EXPECT_THAT(assembled({" 10%\r 50%\r100%\ndos\r\n"}), ElementsAre("100%", "dos"));
}

TEST(Tail, KeepsTheLastLines) {
  Tail tail(2);
  for (const char* line : {"a", "b", "c"}) tail.add(line);

  EXPECT_THAT(tail.lines(), ElementsAre("b", "c"));
}

TEST(LinePrefix, IsTheRankOrWhatTheTemplateSays) {
  EXPECT_EQ(line_prefix("default", 3, nullptr), "[rank 3] ");
  EXPECT_EQ(line_prefix("worker", 3, "<${role_name} ${local_rank}/${rank}> "), "<worker 3/3> ");
}

TEST(Outlet, NeverWaitsForAReaderAndLosesNothing) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  std::string written;
  std::string read;
  {
    Outlet outlet(pipe[1], 1000);
    for (int i = 0; i < 50'000; ++i) {
      const std::string line = "line " + std::to_string(i) + "\n";
      outlet.write(line);
      written += line;
    }
    EXPECT_FALSE(outlet.is_empty());

    std::array<char, 4096> bytes;
    while (!outlet.is_empty()) {
      const ssize_t got = ::read(pipe[0], bytes.data(), bytes.size());
      ASSERT_GT(got, 0);
      read.append(bytes.data(), static_cast<std::size_t>(got));
      outlet.flush();
    }
    ::close(pipe[1]);
    for (ssize_t got = 0; (got = ::read(pipe[0], bytes.data(), bytes.size())) > 0;) {
      read.append(bytes.data(), static_cast<std::size_t>(got));
    }
  }
  ::close(pipe[0]);

  EXPECT_TRUE(read == written);
}

TEST(LaunchOutput, LongLinesOfManyRanksAreWholeAndComplete) {
  const Outcome outcome = launch({"--standalone", "--nproc-per-node", "4", "sh", "-c",
                                  "line=$(head -c 9000 /dev/zero | tr '\\0' $RANK); i=0; "
                                  "while [ $i -lt 300 ]; do echo $line; echo $line >&2; i=$((i+1)); done; "
                                  "printf last"});

  std::map<std::string, int> seen;
  for (const std::string& line : lines_of(outcome.out)) ++seen[line];
  std::map<std::string, int> expected;
  for (char rank = '0'; rank < '4'; ++rank) {
    const std::string prefix = std::string("[rank ") + rank + "] ";
    expected[prefix + std::string(9000, rank)] = 300;
    expected[prefix + "last"] = 1;
  }
  EXPECT_TRUE(seen == expected);
  int on_stderr = 0;
  for (const std::string& line : lines_of(outcome.err)) on_stderr += line.starts_with("[rank") ? 1 : 0;
  EXPECT_EQ(on_stderr, 4 * 300);
}

TEST(LaunchOutput, ThatWaitsForItsReaderLeavesThePipeAsItWas) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  RunningLauncher launcher(
      {"--standalone", "sh", "-c", "yes $(head -c 99 /dev/zero | tr '\\0' x) | head -n 2000; echo all >&2"},
      {}, [&] { ::dup2(pipe[1], STDOUT_FILENO); });
  const std::string line = "[rank 0] " + std::string(99, 'x') + "\n";
  ASSERT_TRUE(eventually([&] { return launcher.err().find("[rank 0] all") != std::string::npos; }));

  std::string read;
  std::array<char, 4096> bytes;
  while (read.size() < 2000 * line.size()) {
    const ssize_t got = ::read(pipe[0], bytes.data(), bytes.size());
    ASSERT_GT(got, 0);
    read.append(bytes.data(), static_cast<std::size_t>(got));
  }
  const Outcome outcome = launcher.wait();

  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(lines_of(read), std::vector<std::string>(2000, line.substr(0, line.size() - 1)));
  EXPECT_EQ(::fcntl(pipe[1], F_GETFL) & O_NONBLOCK, 0) << "who writes next is not told to come again";
  for (const int end : pipe) ::close(end);
}

// A window that hangs, or a connection that is lost.
TEST(LaunchOutput, ATerminalThatNobodyReadsStopsNoRank) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_TRUE(master >= 0 && ::grantpt(master) == 0 && ::unlockpt(master) == 0);
  const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(slave, 0);
  RunningLauncher launcher(
      {"--standalone", "sh", "-c", "yes $(head -c 99 /dev/zero | tr '\\0' x) | head -n 20000; echo all >&2"},
      {}, [slave] { ::dup2(slave, STDOUT_FILENO); });

  EXPECT_TRUE(eventually([&] { return launcher.err().find("[rank 0] all") != std::string::npos; }));

  EXPECT_EQ(::fcntl(slave, F_GETFL) & O_NONBLOCK, 0);
  for (const int end : {master, slave}) ::close(end);
}

TEST(LaunchOutput, StdoutAndStderrStayApart) {
  const Outcome outcome = launch({"--standalone", "sh", "-c", "echo good; echo bad >&2"});

  EXPECT_EQ(outcome.out, "[rank 0] good\n");
  EXPECT_THAT(outcome.err, HasSubstr("[rank 0] bad\n"));
}

TEST(LaunchOutput, RedirectsTeesAndTheFilterPutEachStreamWhereItWasAsked) {
  const TemporaryDirectory logs;
  const Outcome outcome = launch({"--standalone", "--nproc-per-node", "3", "--log-dir", logs.path(), "-r",
                                  "0:3", "--tee=1:1", "--local_ranks_filter", "0,1", "--rdzv-id", "night run",
                                  "sh", "-c", "echo out $RANK; echo err $RANK >&2"});

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "[rank 1] out 1\n") << "0 is redirected, 2 is filtered";
  EXPECT_THAT(outcome.err, HasSubstr("[rank 1] err 1"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("err 0")));
  ASSERT_FALSE(std::filesystem::is_empty(logs.path()));
  const auto run = std::filesystem::directory_iterator(logs.path())->path();
  EXPECT_TRUE(run.filename().string().starts_with("night_run_")) << run;
  EXPECT_EQ(read_file(run / "attempt_0/0/stdout.log"), "out 0\n");
  EXPECT_EQ(read_file(run / "attempt_0/0/stderr.log"), "err 0\n");
  EXPECT_EQ(read_file(run / "attempt_0/1/stdout.log"), "out 1\n");
  EXPECT_FALSE(std::filesystem::exists(run / "attempt_0/1/stderr.log"));
  EXPECT_THAT(read_file(run / "job_report.json"), HasSubstr("\"exit_code\": 0"));
}

TEST(LaunchOutput, AKilledRankHasAnErrorFileAndTheReportNamesIt) {
  const TemporaryDirectory logs;
  launch({"--standalone", "--nproc-per-node", "2", "--log-dir", logs.path(), "sh", "-c",
          "[ $RANK = 0 ] || kill -SEGV $$; sleep 1000"});

  ASSERT_FALSE(std::filesystem::is_empty(logs.path()));
  const auto run = std::filesystem::directory_iterator(logs.path())->path();
  EXPECT_THAT(read_file(run / "attempt_0/1/error.json"), HasSubstr("SIGSEGV"));
  const std::string report = read_file(run / "job_report.json");
  EXPECT_THAT(report.substr(report.find("first_failure")), HasSubstr("\"rank\": 1"));
}

}  // namespace
}  // namespace troupe::apps
