#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "apps/troupe/launch/options.hpp"
#include "apps/troupe/launch/report.hpp"
#include "tests/launch/running_launcher.hpp"
#include "tests/support/unused_port.hpp"

namespace troupe::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

core::Result<std::optional<LaunchOptions>> parse(const std::vector<std::string>& words) {
  return parse_launch_options(words);
}

std::string refusal_of(const std::vector<std::string>& words) {
  const auto options = parse(words);
  return options ? "accepted" : options.error().message;
}

TEST(LaunchOptions, WhatFollowsTheProgramIsTheProgramsOwn) {
  const auto options =
      parse({"--nproc_per_node=4", "-r", "3", "-m", "train", "--nproc-per-node", "9", "--", "-x"});
  ASSERT_TRUE(options && *options);

  EXPECT_EQ((*options)->nproc_per_node, "4");
  EXPECT_EQ((*options)->redirects, "3");
  EXPECT_TRUE((*options)->module);
  EXPECT_THAT((*options)->program, ElementsAre("train", "--nproc-per-node", "9", "--", "-x"));
}

TEST(LaunchOptions, TwoDashesEndTheFlags) {
  const auto options = parse({"--standalone", "--", "--odd-name", "[1,2]"});
  ASSERT_TRUE(options && *options);

  EXPECT_TRUE((*options)->standalone);
  EXPECT_THAT((*options)->program, ElementsAre("--odd-name", "[1,2]"));
}

TEST(LaunchOptions, AnUnknownFlagIsRefusedWithTheNearestOne) {
  EXPECT_THAT(refusal_of({"--nproc-pernode", "4", "x"}), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(refusal_of({"--frobnicate", "x"}), HasSubstr("--help"));
  EXPECT_THAT(refusal_of({"--max-restarts"}), HasSubstr("needs a value"));
  EXPECT_THAT(refusal_of({"--max-restarts", "-1", "x"}), HasSubstr("max-restarts"));
}

TEST(LaunchOptions, TorchrunFlagsWithoutMeaningHereAreAccepted) {
  const auto options = parse(
      {"--monitor-interval", "0.5", "--start-method=fork", "--ft-rank-heartbeat-timeout", "60", "prog"});
  ASSERT_TRUE(options && *options);

  EXPECT_THAT((*options)->program, ElementsAre("prog"));
  EXPECT_EQ((*options)->warnings.size(), 1U);
}

TEST(LaunchOptions, SettingsThatHaveNoEffectAreNamed) {
  const auto options = parse({"--rdzv-conf", "timeout=3,colour=red", "--numa-binding", "exclusive", "prog"});
  ASSERT_TRUE(options && *options);

  EXPECT_THAT((*options)->warnings, ElementsAre(HasSubstr("colour"), HasSubstr("exclusive")));
}

TEST(LaunchOptions, StreamsAreChosenForAllOrByLocalRank) {
  const auto all = parse_stream_choice("-r", "2");
  const auto some = parse_stream_choice("-r", "0:1,3:3");
  const auto wrong = parse_stream_choice("-r", "0:7");

  ASSERT_TRUE(all && some);
  EXPECT_TRUE(all->err(5));
  EXPECT_FALSE(all->out(5));
  EXPECT_TRUE(some->err(3));
  EXPECT_FALSE(some->err(0));
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("-r"));
}

TEST(LikelyMeaning, NamesTheMemoryKillerOnlyIfItsCountRose) {
  const OomKills before{3, 10};

  EXPECT_THAT(likely_meaning({0, SIGKILL}, before, {4, 11}), HasSubstr("cgroup rose from 3 to 4"));
  EXPECT_THAT(likely_meaning({0, SIGKILL}, before, {3, 11}), HasSubstr("machine rose from 10 to 11"));
  EXPECT_THAT(likely_meaning({0, SIGKILL}, before, before), HasSubstr("somebody sent it"));
  EXPECT_THAT(likely_meaning({137, 0}, before, {4, 11}), HasSubstr("SIGKILL"));
  EXPECT_EQ(likely_meaning({3, 0}, before, before), "");
}

std::map<std::string, std::string> environment_of(const std::string& out) {
  std::map<std::string, std::string> variables;
  for (const std::string& line : lines_of(out)) {
    const std::size_t start = line.find("] ") + 2;
    const std::size_t equals = line.find('=', start);
    if (equals != std::string::npos) variables[line.substr(start, equals - start)] = line.substr(equals + 1);
  }
  return variables;
}

TEST(LaunchStart, GivesTorchrunsEnvironmentAndOurs) {
  const Outcome outcome = launch({"--standalone", "--nproc-per-node", "3", "--role", "trainer", "--rdzv-id",
                                  "run/7", "sh", "-c", "[ $RANK != 2 ] || env"});

  auto variables = environment_of(outcome.out);
  const std::map<std::string, std::string> expected{{"RANK", "2"},
                                                    {"LOCAL_RANK", "2"},
                                                    {"WORLD_SIZE", "3"},
                                                    {"LOCAL_WORLD_SIZE", "3"},
                                                    {"GROUP_RANK", "0"},
                                                    {"GROUP_WORLD_SIZE", "1"},
                                                    {"ROLE_NAME", "trainer"},
                                                    {"ROLE_RANK", "2"},
                                                    {"ROLE_WORLD_SIZE", "3"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"OMP_NUM_THREADS", "1"},
                                                    {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                    {"TORCHELASTIC_RUN_ID", "run/7"},
                                                    {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                                    {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                                    {"TROUPE_GENERATION", "0"}};
  for (const auto& [name, value] : expected) EXPECT_EQ(variables[name], value) << name;
  EXPECT_TRUE(variables["TROUPE_JOB_ID"].starts_with("run_7_"));
  EXPECT_EQ(variables["TROUPE_JOB_TOKEN"].size(), 64U);
  EXPECT_TRUE(variables["TROUPE_CONTROL_ADDR"].starts_with("127.0.0.1:"));
  EXPECT_NE(variables["TROUPE_CONTROL_ADDR"], "127.0.0.1:" + variables["MASTER_PORT"]);
  EXPECT_EQ(variables["TROUPE_ERROR_FILE"], variables["TORCHELASTIC_ERROR_FILE"]);
}

TEST(LaunchStart, FlagGoesBeforePetBeforeTheDefault) {
  const std::vector<std::string> pet{"PET_NPROC_PER_NODE=2", "PET_STANDALONE=1", "OMP_NUM_THREADS=5"};

  const Outcome by_environment = launch({"sh", "-c", "echo $WORLD_SIZE $OMP_NUM_THREADS"}, pet);
  const Outcome by_flag = launch({"--nproc-per-node", "3", "sh", "-c", "echo $WORLD_SIZE"}, pet);

  EXPECT_THAT(by_environment.out, HasSubstr("[rank 1] 2 5"));
  EXPECT_THAT(by_flag.out, HasSubstr("[rank 2] 3"));
}

TEST(LaunchStart, VirtualLocalRankIsZeroAndSeesOneDevice) {
  const Outcome outcome = launch({"--standalone", "--nproc-per-node", "2", "--virtual-local-rank", "sh", "-c",
                                  "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES $TROUPE_OWN_GPUS"},
                                 {"CUDA_VISIBLE_DEVICES=5,7"});

  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] 0 0 5 1\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] 1 0 7 1\n"));
}

TEST(LaunchStart, PythonProgramsGoThroughTheInterpreterUnlessToldNot) {
  const TemporaryDirectory directory;
  const std::string script = directory.path() / "train.py";
  std::ofstream(script) << "#!/bin/sh\necho executed $1\n";
  ::chmod(script.c_str(), 0755);
  const std::vector<std::string> python{"PYTHON_EXEC=echo"};

  EXPECT_EQ(launch({"--standalone", script, "a"}, python).out, "[rank 0] -u " + script + " a\n");
  EXPECT_EQ(launch({"--standalone", "-m", "pkg.train", "a"}, python).out, "[rank 0] -u -m pkg.train a\n");
  EXPECT_EQ(launch({"--standalone", "--no-python", script, "a"}, python).out, "[rank 0] executed a\n");
}

TEST(LaunchStart, RanksInheritNoDescriptors) {
  const Outcome outcome = launch({"--standalone", "sh", "-c", "exec ls /proc/self/fd"});

  // The fourth is the directory which ls reads.
  EXPECT_EQ(outcome.out, "[rank 0] 0\n[rank 0] 1\n[rank 0] 2\n[rank 0] 3\n");
}

TEST(LaunchStart, Rank0HasTheInputOfTheLauncher) {
  const TemporaryDirectory directory;
  const std::string typed = directory.path() / "typed";
  std::ofstream(typed) << "hello\nand more";
  RunningLauncher launcher({"--standalone", "--nproc-per-node", "2", "sh", "-c", "echo \"$RANK: $(cat)\""},
                           {}, [&] { ::dup2(::open(typed.c_str(), O_RDONLY), STDIN_FILENO); });

  const Outcome outcome = launcher.wait();

  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] 0: hello\n[rank 0] and more\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] 1: \n"));
}

/// A terminal, of which the test has the other end.
struct Terminal {
  int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  std::string name;

  Terminal() {
    ::grantpt(master);
    ::unlockpt(master);
    name = ::ptsname(master);
  }
  ~Terminal() { ::close(master); }
};

TEST(LaunchStart, WhatIsTypedAtATerminalReachesRank0) {
  const Terminal terminal;
  RunningLauncher launcher(
      {"--standalone", "--nproc-per-node", "2", "sh", "-c", "echo ready; echo \"$RANK: $(cat)\""}, {}, [&] {
        ::setsid();
        ::dup2(::open(terminal.name.c_str(), O_RDWR), STDIN_FILENO);
      });
  ASSERT_TRUE(launcher.wait_for_lines(2));

  ASSERT_EQ(::write(terminal.master, "hello\n\x04", 7), 7);
  const Outcome outcome = launcher.wait();

  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] 0: hello\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] 1: \n"));
}

TEST(LaunchStart, TakesTheLoopbackAddressOfIpv6) {
  const std::string print = "echo $MASTER_ADDR $MASTER_PORT $TROUPE_CONTROL_ADDR";
  const std::string port = std::to_string(tests::unused_port());
  const std::vector<std::vector<std::string>> lines{
      {"--master-addr", "::1", "--master-port", port},
      {"--master-addr", "[0:0:0:0:0:0:0:1]", "--master-port", port},
      {"--rdzv-endpoint", "[::1]:" + port},
      {"--rdzv-backend", "c10d", "--rdzv-endpoint", "[::1]:" + port},
      {"--rdzv-backend", "c10d", "--rdzv-endpoint", "::1"},
      {"--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"}};
  for (auto words : lines) {
    const bool is_static = words[1] != "c10d";
    const std::string host = words.back().starts_with("localhost") ? "localhost"
                             : words[1].starts_with("[0")          ? "0:0:0:0:0:0:0:1"
                                                                   : "::1";
    words.insert(words.end(), {"--", "sh", "-c", print});
    const Outcome outcome = launch(words);

    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("[rank 0] " + host + " " + (is_static ? port + " " : "")));
    EXPECT_THAT(outcome.out, HasSubstr(host == "localhost" ? " localhost:" : " [" + host + "]:"));
  }
}

TEST(LaunchStart, TakesTheFlagsOfNewerReleasesOfTorchrun) {
  const std::vector<std::vector<std::string>> lines{{"--nproc", "1"},
                                                    {"--nproc_per", "1"},
                                                    {"--shutdown-timeout", "3"},
                                                    {"--signals-to-handle", "SIGTERM,SIGUSR1"},
                                                    {"--numa-binding", "exclusive"},
                                                    {"--log-line-prefix-template", "${rank} "}};
  for (auto words : lines) {
    words.insert(words.end(), {"--standalone", "--", "true"});
    const Outcome outcome = launch(words);

    EXPECT_EQ(outcome.exit_code, 0) << words[0] << ": " << outcome.err;
  }
}

TEST(LaunchStart, NamesTheVariableThatAWrongValueComesFrom) {
  const std::map<std::string, std::string> wrong{{"PET_NNODES=two", "--nnodes"},
                                                 {"PET_NPROC_PER_NODE=many", "--nproc-per-node"},
                                                 {"PET_MASTER_PORT=none", "--master-port"},
                                                 {"PET_MASTER_ADDR=192.0.2.1", "--master-addr"},
                                                 {"PET_RDZV_BACKEND=etcd", "--rdzv-backend"}};
  for (const auto& [variable, flag] : wrong) {
    const Outcome outcome = launch({"true"}, {variable});

    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err,
                HasSubstr(flag + " is not on the command line: the environment has " + variable));
  }
  const Outcome by_flag = launch({"--nnodes", "0", "true"}, {"PET_NNODES=1"});
  EXPECT_EQ(by_flag.err.find("PET_"), std::string::npos) << by_flag.err;
}

/// A server as others write it, on the port that the launcher gave to rank 0.
TEST(LaunchStart, KeepsItsPortsForRank0) {
  const std::string serve =
      "import os, socket, sys\n"
      "ports = [int(os.environ['MASTER_PORT']), int(os.environ['TROUPE_CONTROL_ADDR'].rsplit(':', 1)[1])]\n"
      "others = [socket.socket() for _ in range(200)]\n"
      "[other.bind(('127.0.0.1', 0)) for other in others]\n"
      "taken = [other.getsockname()[1] for other in others if other.getsockname()[1] in ports]\n"
      "servers = [socket.create_server(('127.0.0.1', port)) for port in ports]\n"
      "clients = [socket.create_connection(('127.0.0.1', port), timeout=20) for port in ports]\n"
      "print('taken', taken, 'reached', len(clients))\n";
  const Outcome outcome = launch({"--standalone", "python3", "-c", serve});

  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("taken [] reached 2"));
}

/// The guard among the launcher's processes, once it waits for the launcher's end.
bool guard_waits(const RunningLauncher& launcher) {
  std::error_code error;
  for (const pid_t pid : launcher.processes()) {
    const auto process = std::filesystem::path("/proc") / std::to_string(pid);
    if (read_file(process / "comm") != "troupe-guard\n") continue;
    if (std::filesystem::read_symlink(process / "fd/3", error).string().starts_with("pipe:")) return true;
  }
  return false;
}

TEST(LaunchStart, LauncherWithoutAStandardStreamKeepsGuardAndDirectory) {
  for (const int closed : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    SCOPED_TRACE(::testing::Message() << "descriptor " << closed << " is closed");
    const TemporaryDirectory directory;
    const std::string fifo = directory.path() / "fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    RunningLauncher launcher(
        {"--standalone", "sh", "-c", "cat \"$FIFO\"; test -d \"$(dirname $TROUPE_PROGRESS_FILE)\""},
        {"FIFO=" + fifo}, [closed] { ::close(closed); });
    EXPECT_TRUE(eventually([&] { return guard_waits(launcher); }, std::chrono::seconds(5)));

    int writer = -1;
    EXPECT_TRUE(
        eventually([&] { return (writer = ::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0; },
                   std::chrono::seconds(5)));
    ::close(writer);

    EXPECT_EQ(launcher.wait().exit_code, 0) << launcher.err();
    EXPECT_TRUE(launcher.segments().empty());
  }
}

TEST(LaunchStart, LeadsAProcessGroupOfItsOwn) {
  const Outcome outcome =
      launch({"--standalone", "sh", "-c", "[ $(cut -d' ' -f5 /proc/$$/stat) = $$ ] && echo leader"});

  EXPECT_EQ(outcome.out, "[rank 0] leader\n");
}

struct Mistake {
  const char* name;
  std::vector<std::string> arguments;
  const char* advice;

  friend std::ostream& operator<<(std::ostream& out, const Mistake& of) { return out << of.name; }
};

class LaunchMistake : public ::testing::TestWithParam<Mistake> {};

TEST_P(LaunchMistake, EndsWithTwoAndSaysWhatToDo) {
  const Outcome outcome = launch(GetParam().arguments);

  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().advice));
  EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(
    Start, LaunchMistake,
    ::testing::Values(
        Mistake{"UnknownFlag", {"--standalonee", "true"}, "did you mean --standalone?"},
        Mistake{"NoProgram", {"--standalone"}, "no program given"},
        Mistake{"MissingProgram", {"--standalone", "no-such-program"}, "no-such-program in PATH"},
        Mistake{"MissingPath", {"--standalone", "./no-such-program"}, "look at the path"},
        Mistake{"NotExecutable", {"--standalone", "/etc/passwd"}, "chmod +x"},
        Mistake{"ADirectory", {"--standalone", "/etc"}, "is a directory"},
        Mistake{"MissingScript", {"--standalone", "no_such_script.py"}, "there is no script"},
        Mistake{"TooManyRanks", {"--nproc-per-node", "1000000", "true"}, "start at most"},
        Mistake{"NoRanks", {"--nproc-per-node", "0", "true"}, "expected a number from 1"},
        Mistake{"StandaloneNodes", {"--standalone", "--nnodes", "2", "true"}, "--standalone is for one node"},
        Mistake{"RangeUpsideDown", {"--nproc-per-node", "4:2", "true"}, "write 2:4"},
        Mistake{"RangeWithoutItsEnd", {"--nproc-per-node", "2:", "true"}, "expected a number from 1"},
        Mistake{"RangeOfGangs",
                {"--nproc-per-node", "1:2", "--recovery", "restart", "true"},
                "--nproc-per-node 1:2 and --recovery restart exclude each other"},
        Mistake{"SparesOfGangs",
                {"--spares", "1", "--recovery", "restart", "true"},
                "--spares and --recovery restart exclude each other"},
        Mistake{"NodesBackwards", {"--nnodes=4:1", "true"}, "--nnodes: expected N or MIN:MAX, found"},
        Mistake{"NodeRankOfOneNode", {"--node-rank", "1", "true"}, "give --nnodes too"},
        Mistake{"NodeRankBeyond", {"--nnodes", "2", "--node-rank", "2", "true"}, "node ranks 0 to 1"},
        Mistake{"WrongPatience",
                {"--nnodes", "2", "--rdzv-conf", "join_timeout=soon", "true"},
                "--rdzv-conf: join_timeout"},
        Mistake{"ForeignNodeZero",
                {"--nnodes", "2", "--node-rank", "0", "--master-addr", "192.0.2.1", "true"},
                "--master-addr is to be the address of node 0"},
        Mistake{"NoTokenFile",
                {"--nnodes", "2", "--token-file", "/nowhere/token", "true"},
                "openssl rand -hex 32 > /nowhere/token"},
        Mistake{"BeginningOfTwoFlags", {"--rdzv", "c10d", "true"}, "--rdzv-backend, --rdzv-endpoint"},
        Mistake{"Completion", {"--print-completion", "bash"}, "--print-completion"},
        Mistake{"OtherGpus", {"--nproc-per-node", "xpu", "true"}, "--nproc-per-node xpu"},
        Mistake{"SignalThatNobodyHandles", {"--signals-to-handle", "SIGKILL", "true"}, "found \"SIGKILL\""},
        Mistake{"EndpointInBrackets", {"--rdzv-endpoint", "[::1", "true"}, "--rdzv-endpoint: expected HOST"},
        Mistake{"ForeignEndpoint",
                {"--rdzv-backend", "c10d", "--rdzv-endpoint", "[2001:db8::1]:1", "true"},
                "--rdzv-endpoint is to be this machine's"},
        Mistake{"Etcd", {"--rdzv-backend", "etcd-v2", "true"}, "needs no etcd"},
        Mistake{"ForeignAddress", {"--master-addr", "192.0.2.1", "true"}, "--master-addr"},
        Mistake{"BothPythonFlags", {"-m", "--no-python", "x"}, "exclude each other"},
        Mistake{"WrongFilter", {"--standalone", "--local-ranks-filter", "4", "true"}, "local rank 4"}),
    testing::PrintToStringParamName());

TEST(LaunchStart, AMasterPortInUseIsRefused) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);

  const Outcome outcome = launch({"--master-port", std::to_string(ntohs(address.sin_port)), "true"});
  ::close(fd);

  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--standalone"));
}

TEST(LaunchStart, ProgramTheKernelRefusesIsAFailureWithAdvice) {
  const TemporaryDirectory directory;
  const std::string program = directory.path() / "no_interpreter";
  std::ofstream(program) << "echo hello\n";
  ::chmod(program.c_str(), 0755);

  const Outcome outcome = launch({"--standalone", "--max-restarts", "3", program});

  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("#!/bin/sh"));
}

}  // namespace
}  // namespace troupe::apps
