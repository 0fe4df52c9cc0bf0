#include "actors/world/process/posix.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "actors/world/job_guard.hpp"
#include "core/errors.hpp"
#include "posix/descriptor.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;
using posix::Descriptor;

namespace {

struct Pipe {
  Descriptor read;
  Descriptor write;
};

Result<Pipe> open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return core::fail(Errc::io, "cannot open a pipe: {}; raise the limit of open files (ulimit -n)",
                      ::strerror(errno));
  }
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<char*> c_strings(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// Everything the child needs, prepared before the fork: after it there are only system calls.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int input;  ///< -1: /dev/null
  int out;
  int err;
  int report;  ///< errno of what failed is written here; closes on exec
  pid_t parent;
  const cpu_set_t* cpus;  ///< or null
};

void become(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above took effect.
  if (::getppid() != plan.parent) ::_exit(137);
  if (plan.cpus) ::sched_setaffinity(0, sizeof(cpu_set_t), plan.cpus);

  const int input = plan.input >= 0 ? plan.input : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0 || ::dup2(input, STDIN_FILENO) < 0 || ::dup2(plan.out, STDOUT_FILENO) < 0 ||
      ::dup2(plan.err, STDERR_FILENO) < 0) {
    return;
  }
  // The descriptors that we inherited ourselves are not for the ranks.
  ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  // Handlers are reset by exec; signals ignored or blocked here would stay so.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(plan.program, plan.arguments, plan.environment);
}

Result<pid_t> fork_and_exec(const ProcessSpec& spec, int out, int err) {
  Pipe report = TRY(open_pipe());
  const std::vector<char*> arguments = c_strings(spec.arguments);
  const std::vector<char*> environment = c_strings(spec.environment);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int cpu : spec.cpus) CPU_SET(cpu, &cpus);
  const ChildPlan plan{spec.program.c_str(),
                       arguments.data(),
                       environment.data(),
                       spec.input,
                       out,
                       err,
                       report.write.get(),
                       ::getpid(),
                       spec.cpus.empty() ? nullptr : &cpus};

  const pid_t pid = ::fork();
  if (pid < 0) {
    return core::fail(Errc::io, "cannot start a process: {}; see ulimit -u and the cgroup's pids.max",
                      ::strerror(errno));
  }
  if (pid == 0) {
    become(plan);
    const int reason = errno;
    [[maybe_unused]] const ssize_t written = ::write(plan.report, &reason, sizeof reason);
    ::_exit(127);
  }

  report.write = Descriptor();
  int reason = 0;
  ssize_t got = 0;
  do got = ::read(report.read.get(), &reason, sizeof reason);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return pid;

  ::waitpid(pid, nullptr, 0);
  const char* advice = reason == ENOEXEC ? "; a script needs a first line like #!/bin/sh" : "";
  return core::fail(reason == ENOENT ? Errc::not_found : Errc::io, "cannot execute {}: {}{}", spec.program,
                    ::strerror(reason), advice);
}

constexpr std::size_t kReadBytes = 64 * 1024;
/// A dead child's pipe holds at most this much, unless another process still writes to it.
constexpr int kDrainReads = 32;

/// Shared by the process and by the handlers waiting in the loop.
struct State : std::enable_shared_from_this<State> {
  State(asio::io_context& loop, pid_t child, int pidfd, int out, int err, ProcessHandlers given)
      : pid(child),
        handle(loop, pidfd),
        outputs{asio::posix::stream_descriptor(loop, out), asio::posix::stream_descriptor(loop, err)},
        handlers(std::move(given)) {}

  void watch() {
    wait_for_end();
    for (OutputStream stream : {OutputStream::out, OutputStream::err}) listen(stream);
  }

  void wait_for_end() {
    handle.async_wait(asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](const std::error_code& error) {
                        if (!error && self->watched) self->collect();
                      });
  }

  asio::posix::stream_descriptor& output_of(OutputStream stream) {
    return outputs[stream == OutputStream::out ? 0 : 1];
  }

  void listen(OutputStream stream) {
    output_of(stream).async_wait(asio::posix::stream_descriptor::wait_read,
                                 [self = shared_from_this(), stream](const std::error_code& error) {
                                   if (error || !self->watched) return;
                                   if (self->read(stream, 1)) self->listen(stream);
                                 });
  }

  /// False when the stream ended.
  bool read(OutputStream stream, int times) {
    auto& descriptor = output_of(stream);
    std::array<char, kReadBytes> bytes;
    for (int i = 0; i < times && descriptor.is_open(); ++i) {
      const ssize_t got = ::read(descriptor.native_handle(), bytes.data(), bytes.size());
      if (got > 0) {
        handlers.output(stream, {bytes.data(), static_cast<std::size_t>(got)});
      } else if (got < 0 && errno == EINTR) {
        continue;
      } else if (got < 0 && errno == EAGAIN) {
        return true;
      } else {
        std::error_code ignored;
        descriptor.close(ignored);
        handlers.closed(stream);
      }
    }
    return descriptor.is_open();
  }

  void collect() {
    const auto pidfd = static_cast<id_t>(handle.native_handle());
    siginfo_t info{};
    const bool ended =
        ::waitid(P_PIDFD, pidfd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
    // The loop may wake us for a descriptor that previously had the same number.
    if (!ended) return wait_for_end();
    // While the child is a zombie, neither its process id nor its group's can be reused.
    ::kill(-pid, SIGKILL);
    ::waitid(P_PIDFD, pidfd, &info, WEXITED | WNOHANG);
    running = false;
    std::error_code ignored;
    handle.close(ignored);
    for (OutputStream stream : {OutputStream::out, OutputStream::err}) read(stream, kDrainReads);

    const bool exited = info.si_code == CLD_EXITED;
    handlers.exited(exited ? ExitStatus{info.si_status, 0} : ExitStatus{0, info.si_status});
  }

  void forget() {
    watched = false;
    std::error_code ignored;
    handle.close(ignored);
    for (auto& output : outputs) output.close(ignored);
  }

  pid_t pid;
  asio::posix::stream_descriptor handle;
  std::array<asio::posix::stream_descriptor, 2> outputs;
  ProcessHandlers handlers;
  bool running = true;
  bool watched = true;
};

/// Whether the process has a handler for the signal, ignores it or blocks it.
bool chooses(pid_t pid, int signal) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  const std::uint64_t bit = std::uint64_t{1} << (signal - 1);
  for (std::string line; std::getline(file, line);) {
    for (const std::string_view name : {"SigBlk:\t", "SigIgn:\t", "SigCgt:\t"}) {
      if (!line.starts_with(name)) continue;
      if ((std::strtoull(line.c_str() + name.size(), nullptr, 16) & bit) != 0) return true;
    }
  }
  return false;
}

/// Whether a process of the group was stopped by a signal; one that a debugger holds was not.
bool is_group_stopped(pid_t group) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    std::ifstream file(entry->path() / "stat");
    std::string text;
    std::getline(file, text);
    // The program's name, in parentheses, may hold anything.
    const std::size_t name_end = text.rfind(") ");
    char state = 0;
    pid_t parent = 0;
    pid_t of_group = 0;
    if (name_end != std::string::npos &&
        std::istringstream(text.substr(name_end + 2)) >> state >> parent >> of_group && of_group == group &&
        state == 'T')
      return true;
  }
  return false;
}

class PosixProcess final : public Process {
 public:
  explicit PosixProcess(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~PosixProcess() override {
    signal_group(SIGKILL);
    state_->forget();
  }
  PosixProcess(const PosixProcess&) = delete;
  PosixProcess& operator=(const PosixProcess&) = delete;

  std::int64_t pid() const override { return state_->pid; }
  void signal(int signal) override {
    if (!state_->running) return;
    ::syscall(SYS_pidfd_send_signal, state_->handle.native_handle(), signal, nullptr, 0);
  }
  bool handles(int signal) const override { return state_->running && chooses(state_->pid, signal); }
  void signal_group(int signal) override {
    if (state_->running) ::kill(-state_->pid, signal);
  }
  bool is_stopped() const override { return state_->running && is_group_stopped(state_->pid); }
  bool wake() override {
    const bool was_stopped = std::exchange(was_stopped_, is_stopped());
    if (!was_stopped || !was_stopped_) return false;
    signal_group(SIGCONT);
    was_stopped_ = false;
    return true;
  }

 private:
  std::shared_ptr<State> state_;
  bool was_stopped_ = false;  ///< at the last call of wake()
};

}  // namespace

Result<std::unique_ptr<Process>> PosixProcesses::spawn(const ProcessSpec& spec, ProcessHandlers handlers) {
  Pipe out = TRY(open_pipe());
  Pipe err = TRY(open_pipe());
  const pid_t pid = TRY(fork_and_exec(spec, out.write.get(), err.write.get()));
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    const int reason = errno;
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return core::fail(Errc::unavailable, "cannot watch process {}: {}; Linux 5.3 or newer is needed", pid,
                      ::strerror(reason));
  }
  for (const Pipe* pipe : {&out, &err}) ::fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
  auto state =
      std::make_shared<State>(loop_, pid, pidfd, out.read.release(), err.read.release(), std::move(handlers));
  state->watch();
  return std::make_unique<PosixProcess>(std::move(state));
}

int PosixProcesses::clear_away(const std::string& job, const std::string& mark) {
  const int killed = kill_processes_marked(mark);
  remove_job_segments(job, mark);
  return killed;
}

}  // namespace troupe::actors
