// Ranks as real processes, which are killed and stopped in the middle of operations.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "gpu/collective/rendezvous_file.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "gpu/collective/tcp/tcp_backend.hpp"
#include "gpu/host/host_device.hpp"
#include "posix/run_delay.hpp"
#include "tests/gpu/collective/company.hpp"
#include "tests/support/environment.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

std::chrono::nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

/// What a member tells the test through the pipe; written in one piece.
struct Report {
  int member = 0;
  bool ended = false;  ///< or it has done one more operation
  core::Errc code{};
  std::chrono::nanoseconds time{};
  std::chrono::nanoseconds run_delay{};  ///< of its threads, in the operation
};

struct Scene {
  BackendKind kind = BackendKind::shared_memory;
  int size = 2;
  std::size_t bytes = 0;
  std::chrono::nanoseconds deadline = 60s;
  bool gives_to_last = false;  ///< the first member, by an all_to_all; otherwise all reduce
};

std::unique_ptr<CollectiveBackend> make_backend(BackendKind kind, Rendezvous& rendezvous) {
  if (kind == BackendKind::tcp) return TcpBackend::open(rendezvous, {}).value();
  return std::make_unique<SharedMemoryBackend>(rendezvous);
}

/// The members' processes, which repeat the scene's operation until an error ends them.
class Processes {
 public:
  explicit Processes(const Scene& scene) : scene_(scene) {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr, "the test has a temporary directory");
    CHECK(pipe2(pipe_, O_CLOEXEC) == 0, "the test has a pipe");
    directory_ = pattern;
    job_ = fmt::format("processes-{}", getpid());
    run_delays_.resize(static_cast<std::size_t>(scene.size));
    for (int i = 0; i < scene.size; ++i) start(i);
    close(pipe_[1]);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    close(pipe_[0]);
    std::filesystem::remove_all(directory_);
  }

  /// Blocks until `member` has done `count` more operations, or so many after `since`.
  void wait_for_operations(int member, int count, std::chrono::nanoseconds since = 0ns) {
    while (count > 0) {
      const auto report = read_report();
      if (!report) return;
      CHECK(!report->ended, "all goes well before the fault");
      if (report->member == member && report->time > since) --count;
    }
  }

  /// The last words of all members but `victim`; of fewer when there was no end to be had.
  std::vector<Report> wait_for_ends(int victim) {
    std::vector<Report> ends;
    while (static_cast<int>(ends.size()) < scene_.size - 1) {
      const auto report = read_report();
      if (!report) return ends;
      if (report->ended && report->member != victim) ends.push_back(*report);
    }
    return ends;
  }

  /// Kills it; returns when it was dead.
  std::chrono::nanoseconds lose(int member) const {
    const auto before = posix::run_delay();
    send(member, SIGKILL);
    siginfo_t how;
    const auto pid = static_cast<id_t>(pids_[static_cast<std::size_t>(member)]);
    CHECK(waitid(P_PID, pid, &how, WEXITED | WNOWAIT) == 0, "a killed member ends");
    return now() - (posix::run_delay() - before);
  }

  /// Returns when it was sent.
  std::chrono::nanoseconds send(int member, int signal_number) const {
    const auto sent = now();
    kill(pids_[static_cast<std::size_t>(member)], signal_number);
    return sent;
  }

  const std::string& job() const { return job_; }

 private:
  void start(int index) {
    const pid_t pid = fork();
    CHECK(pid >= 0, "the test can fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      work(index);
      _exit(0);
    }
    pids_.push_back(pid);
  }

  void work(int index) {
    FileRendezvous rendezvous(directory_);
    const auto device = open_host_device().value();
    const auto stream = device->create_stream({.name = "test"}).value();
    const auto backend = make_backend(scene_.kind, rendezvous);
    GroupOptions options{.job = job_, .epoch = {1}, .name = "dp", .members = {}, .self = {index}};
    for (int i = 0; i < scene_.size; ++i) options.members.push_back({i});
    const auto group = backend->create_group(options).value();
    const Buffer buffer = device->allocate(scene_.bytes).value();
    for (bool ended = false; !ended;) {
      const auto status = group->post(operation_of(index, buffer.view()), stream.get());
      std::chrono::nanoseconds of_stream{};
      stream->enqueue("run delay", {}, [&] { of_stream = posix::run_delay(); });
      CHECK(stream->synchronize(60s).has_value(), "an operation ends");
      const auto result = *(*status)->result();
      ended = !result.has_value();
      tell({index, ended, ended ? result.error().code : core::Errc{}, now(), of_stream + posix::run_delay()});
    }
  }

  Operation operation_of(int index, BufferView buffer) const {
    Operation operation{.kind = OperationKind::all_reduce, .input = buffer, .output = buffer};
    if (scene_.gives_to_last) {
      std::vector<std::size_t> gives(static_cast<std::size_t>(scene_.size)), takes(gives);
      const bool is_first = index == 0, is_last = index == scene_.size - 1;
      if (is_first) gives.back() = buffer.bytes / sizeof(float);
      if (is_last) takes.front() = buffer.bytes / sizeof(float);
      operation = {.kind = OperationKind::all_to_all,
                   .input = buffer.subview(0, is_first ? buffer.bytes : 0),
                   .output = buffer.subview(0, is_last ? buffer.bytes : 0),
                   .input_counts = gives,
                   .output_counts = takes};
    }
    operation.deadline = scene_.deadline;
    return operation;
  }

  void tell(const Report& report) const {
    CHECK(write(pipe_[1], &report, sizeof report) == sizeof report, "the test listens");
  }

  /// None, and the test has failed, when no member says anything for half a minute.
  std::optional<Report> read_report() {
    pollfd entry{pipe_[0], POLLIN, 0};
    if (poll(&entry, 1, 30'000) != 1) {
      ADD_FAILURE() << "no member has said anything for 30 s: neither its deadline nor the end of a peer "
                       "ended an operation";
      return std::nullopt;
    }
    Report report;
    CHECK(read(pipe_[0], &report, sizeof report) == sizeof report, "members report");
    report.run_delay -= std::exchange(run_delays_[static_cast<std::size_t>(report.member)], report.run_delay);
    return report;
  }

  Scene scene_;
  std::filesystem::path directory_;
  std::string job_;
  int pipe_[2] = {-1, -1};
  std::vector<pid_t> pids_;
  std::vector<std::chrono::nanoseconds> run_delays_;  // of each member, up to its last report
};

std::vector<std::string> segments_of(const std::string& job) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("troupe-" + job + "-")) found.push_back(name);
  }
  return found;
}

class CollectiveProcesses : public ::testing::TestWithParam<BackendKind> {
 protected:
  std::chrono::nanoseconds patience() const {
    return (GetParam() == BackendKind::shared_memory ? 100ms : 1000ms) * tests::patience_factor();
  }

  /// The members' last words came in time after `fault`. One member may have the news from another, and
  /// neither can help it that others have the processors.
  void expect_in_time(std::vector<Report> ends, std::chrono::nanoseconds fault,
                      const std::string& where) const {
    std::ranges::sort(ends, std::ranges::greater(), &Report::run_delay);
    for (const Report& end : ends) {
      const bool is_first = &end == &ends.front();
      const auto other = ends.size() > 1 ? ends[is_first ? 1 : 0].run_delay : 0ns;
      EXPECT_LT(end.time - fault - end.run_delay - other, patience())
          << "member " << end.member << ", " << where << ", delayed by " << end.run_delay.count() << " and "
          << other.count() << " ns";
    }
  }
};

// Covers beyond-8.
TEST_P(CollectiveProcesses, AKilledPeerEndsEverySurvivorInTime) {
  std::mt19937 random(7);
  for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{256} << 10, std::size_t{8} << 20}) {
    for (int victim = 0; victim < 4; ++victim) {
      Processes processes({.kind = GetParam(), .size = 4, .bytes = bytes});
      processes.wait_for_operations(victim, 1 + static_cast<int>(random() % 5));
      const auto killed = processes.lose(victim);
      const auto ends = processes.wait_for_ends(victim);
      for (const Report& end : ends) EXPECT_EQ(core::to_string(end.code), std::string("peer_lost"));
      expect_in_time(ends, killed, fmt::format("{} bytes", bytes));
      EXPECT_THAT(segments_of(processes.job()), ::testing::IsEmpty());
      if (HasFailure()) return;
    }
  }
}

TEST_P(CollectiveProcesses, AKilledPeerEndsWhatOneGivesToAnother) {
  std::mt19937 random(8);
  // Over TCP nobody notices the loss of a member that has no part in what goes on.
  const int size = GetParam() == BackendKind::shared_memory ? 4 : 2;
  for (int victim = 0; victim < size; ++victim) {
    Processes processes({.kind = GetParam(), .size = size, .bytes = 16 << 20, .gives_to_last = true});
    processes.wait_for_operations(victim, 1 + static_cast<int>(random() % 5));
    const auto killed = processes.lose(victim);
    const auto ends = processes.wait_for_ends(victim);
    for (const Report& end : ends) EXPECT_EQ(core::to_string(end.code), std::string("peer_lost"));
    expect_in_time(ends, killed, fmt::format("without {}", victim));
    if (HasFailure()) return;
  }
}

TEST_P(CollectiveProcesses, AStoppedPeerEndsEverySurvivorAtTheDeadline) {
  const auto deadline = 300ms * tests::patience_factor();
  Processes processes({.kind = GetParam(), .size = 3, .bytes = 1 << 16, .deadline = deadline});
  processes.wait_for_operations(1, 3);
  const auto stopped = processes.send(1, SIGSTOP);
  const auto ends = processes.wait_for_ends(1);
  for (const Report& end : ends) {
    // With TCP the survivor that gives up first looks lost to the other.
    EXPECT_THAT(
        core::to_string(end.code),
        ::testing::AnyOf(std::string("timeout"), GetParam() == BackendKind::tcp ? "peer_lost" : "timeout"));
  }
  expect_in_time(ends, stopped + deadline, "after the deadline");
}

TEST_P(CollectiveProcesses, AllStoppedForLongerThanTheDeadlineGoOn) {
  const auto deadline = 1500ms * tests::patience_factor();
  Processes processes({.kind = GetParam(), .size = 3, .bytes = 1 << 16, .deadline = deadline});
  processes.wait_for_operations(1, 3);
  for (int member = 0; member < 3; ++member) processes.send(member, SIGSTOP);
  poll(nullptr, 0, static_cast<int>(std::chrono::milliseconds(deadline + 1s).count()));

  std::chrono::nanoseconds went_on{};
  for (int member = 0; member < 3; ++member) went_on = processes.send(member, SIGCONT);

  for (int member = 0; member < 3; ++member) processes.wait_for_operations(member, 20, went_on);
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectiveProcesses,
                         ::testing::Values(BackendKind::shared_memory, BackendKind::tcp),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::gpu
