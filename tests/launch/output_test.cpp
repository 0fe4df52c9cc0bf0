#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/world/environment.hpp"
#include "apps/troupe/launch/console.hpp"
#include "apps/troupe/launch/lines.hpp"
#include "apps/troupe/launch/rank_log.hpp"
#include "tests/launch/running_launcher.hpp"

namespace troupe::apps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> assembled(const std::vector<std::string>& pieces, std::size_t cap = 1000) {
  std::vector<std::string> lines;
  LineAssembler assembler([&](std::string_view line, LineKind) { lines.emplace_back(line); }, cap);
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

TEST(LineAssembler, ShowsABarWhileDrawnAndOnlyOnce) {
  std::vector<std::string> lines;
  LineAssembler assembler([&](std::string_view line, LineKind kind) {
    lines.push_back(std::string(kind == LineKind::whole      ? "whole "
                                : kind == LineKind::progress ? "progress "
                                                             : "repeated ")
                        .append(line));
  });
  const auto shows = [&](std::string_view bytes) {
    assembler.feed(bytes);
    return assembler.show_progress();
  };

  EXPECT_FALSE(shows("no bar"));
  EXPECT_FALSE(shows(" here\n"));
  EXPECT_TRUE(shows("\r10%"));
  EXPECT_TRUE(shows("\r20%\r30%"));
  EXPECT_FALSE(shows("\r30%"));
  EXPECT_TRUE(shows("\r40%\r"));
  assembler.feed("\r50%\n");
  EXPECT_TRUE(shows("\r100%"));
  assembler.feed("\nend");
  assembler.finish();

  EXPECT_THAT(lines, ElementsAre("whole no bar here", "progress 10%", "progress 30%", "progress 40%",
                                 "whole 50%", "progress 100%", "repeated 100%", "whole end"));
}

TEST(LaunchOutput, ShowsAProgressBarWhileItIsDrawn) {
  RunningLauncher launcher({"--standalone", "sh", "-c",
                            "printf '\\rstep 1 of 2'; while [ ! -e $TMPDIR/go ]; do sleep 0.02; done; printf "
                            "'\\rstep 2 of 2\\n'; printf 'last words'"});

  ASSERT_TRUE(launcher.wait_for_lines(1));
  EXPECT_THAT(launcher.out(), HasSubstr("[rank 0] step 1 of 2\n"));
  launcher.put_file("go", "");
  const auto outcome = launcher.wait();

  EXPECT_EQ(outcome.out, "[rank 0] step 1 of 2\n[rank 0] step 2 of 2\n[rank 0] last words\n");
}

TEST(LaunchOutput, WritesLinesWithAWordToTheirOwnFile) {
  const TemporaryDirectory logs;
  const auto outcome =
      launch({"--standalone", "--nproc-per-node", "2", "--log-dir", logs.path().string(), "--tee", "3",
              "--duplicate-stdout-filters", "apple,a,,b", "--duplicate_stderr_filters=error",
              "--log-line-prefix-template", "${role_name}/${rank}@${hostname}: ", "--", "sh", "-c",
              "echo an apple; echo a,b; echo pear; echo error $RANK >&2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto run = std::filesystem::directory_iterator(logs.path())->path() / "attempt_0";
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string of_rank_1 = std::string("default/1@") + host.data() + ": ";

  EXPECT_THAT(outcome.out, HasSubstr(of_rank_1 + "pear\n"));
  const auto out = read_file(run / "filtered_stdout.log");
  EXPECT_EQ(lines_of(out).size(), 4U) << out;
  EXPECT_THAT(out, AllOf(HasSubstr(of_rank_1 + "an apple\n"), HasSubstr(of_rank_1 + "a,b\n"),
                         Not(HasSubstr("pear"))));
  EXPECT_THAT(read_file(run / "filtered_stderr.log"), HasSubstr(of_rank_1 + "error 1\n"));
}

TEST(Tail, KeepsTheLastLines) {
  Tail tail(2);
  for (const char* line : {"a", "b", "c"}) tail.add(line);

  EXPECT_THAT(tail.lines(), ElementsAre("b", "c"));
}

/// No file of this process grows beyond it meanwhile.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  sighandler_t handler_;
  rlimit before_{};
};

TEST(LinePrefix, IsTheRankOrWhatTheTemplateSays) {
  EXPECT_EQ(line_prefix("default", {3, 1}, ""), "[rank 3] ");
  EXPECT_EQ(line_prefix("worker", {3, 1}, "<${role_name} ${local_rank}/${rank}> "), "<worker 1/3> ");
}

/// An Outlet whose reader takes nothing until everything is written.
class SlowReader {
 public:
  SlowReader() {
    EXPECT_EQ(::pipe2(pipe_.data(), O_CLOEXEC), 0);
    outlet_ = std::make_unique<Outlet>(pipe_[1], 1000);
  }
  ~SlowReader() { ::close(pipe_[0]); }
  SlowReader(const SlowReader&) = delete;
  SlowReader& operator=(const SlowReader&) = delete;

  Outlet& outlet() { return *outlet_; }

  std::string read_all() {
    std::string read;
    std::array<char, 4096> bytes;
    while (!outlet_->is_empty()) {
      const ssize_t got = ::read(pipe_[0], bytes.data(), bytes.size());
      if (got <= 0) break;
      read.append(bytes.data(), static_cast<std::size_t>(got));
      outlet_->flush();
    }
    outlet_.reset();
    ::close(pipe_[1]);
    for (ssize_t got = 0; (got = ::read(pipe_[0], bytes.data(), bytes.size())) > 0;) {
      read.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return read;
  }

 private:
  std::array<int, 2> pipe_{};
  std::unique_ptr<Outlet> outlet_;
};

/// What the reader takes of 50 000 lines, and what was written.
std::pair<std::string, std::string> read_and_written() {
  SlowReader reader;
  std::string written;
  for (int i = 0; i < 50'000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    reader.outlet().write(line);
    written += line;
  }
  EXPECT_FALSE(reader.outlet().is_empty());
  return {reader.read_all(), written};
}

TEST(Outlet, NeverWaitsForAReaderAndLosesNothing) {
  const auto [read, written] = read_and_written();

  EXPECT_TRUE(read == written);
}

TEST(Outlet, LosesNothingWithoutADirectoryForItsFile) {
  const auto before = actors::process_variables()("TMPDIR");
  ::setenv("TMPDIR", "/nonexistent", 1);
  const auto [read, written] = read_and_written();
  before ? ::setenv("TMPDIR", before->c_str(), 1) : ::unsetenv("TMPDIR");

  EXPECT_TRUE(read == written) << read.size() << " of " << written.size() << " bytes came";
}

TEST(Outlet, CountsMissingLinesWhereNoMoreCanBeKept) {
  const FileSizeLimit limit(100'000);

  const auto [read, written] = read_and_written();

  const auto lines = lines_of(read);
  const auto all = lines_of(written);
  ASSERT_GT(lines.size(), 2U);
  ASSERT_LT(lines.size(), all.size());
  const std::size_t kept = lines.size() - 1;
  EXPECT_TRUE(std::equal(lines.begin(), lines.end() - 1, all.begin()))
      << "what is kept is whole and in order";
  EXPECT_THAT(lines.back(),
              AllOf(HasSubstr("[troupe] " + std::to_string(all.size() - kept) + " lines are missing here"),
                    HasSubstr("TMPDIR")));
}

TEST(Outlet, SaysWhatIsMissingBeforeWhatFollows) {
  SlowReader reader;
  {
    const FileSizeLimit limit(10);
    for (int i = 0; i < 10'000; ++i) reader.outlet().write("before " + std::to_string(i) + "\n");
  }
  reader.outlet().write("after\n");

  const auto lines = lines_of(reader.read_all());

  ASSERT_GT(lines.size(), 2U);
  EXPECT_THAT(lines[lines.size() - 2], HasSubstr("lines are missing here"));
  EXPECT_EQ(lines.back(), "after");
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

TEST(LaunchOutput, WaitingForReadersLeavesThePipeAsBefore) {
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

TEST(LaunchOutput, RedirectsTeesAndFilterPutEachStreamWhereAsked) {
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

TEST(LaunchOutput, ReportNamesTheKilledRanksErrorFile) {
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
