#include "actors/world/job_guard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/errors.hpp"

namespace troupe::actors {

namespace fs = std::filesystem;

namespace {

/// A process that starts others faster than we can kill them is given up after this many rounds of new ones,
/// and killed processes that do not end after this long. The launcher hears nothing meanwhile.
constexpr int kRounds = 50;
constexpr std::chrono::seconds kKillPatience{2};
/// A guard that hangs in the file system is left behind.
constexpr int kPatienceMilliseconds = 5000;

bool environment_holds(const fs::path& process, std::string_view assignment) {
  std::ifstream file(process / "environ", std::ios::binary);
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  std::size_t start = 0;
  while (start < environment.size()) {
    const std::size_t end = std::min(environment.find('\0', start), environment.size());
    if (std::string_view(environment).substr(start, end - start) == assignment) return true;
    start = end + 1;
  }
  return false;
}

std::vector<pid_t> marked(std::string_view assignment) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    pid_t pid = 0;
    const auto [rest, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc{} || rest != name.data() + name.size() || pid == ::getpid()) continue;
    // A zombie no longer has an environment.
    if (environment_holds(entry->path(), assignment)) found.push_back(pid);
  }
  return found;
}

[[noreturn]] void guard(const JobLeftovers& leftovers, int life_line) {
  ::setsid();
  ::prctl(PR_SET_NAME, "troupe-guard");
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  ::dup2(life_line, 3);
  ::close_range(4, ~0U, 0);

  char byte = 0;
  while (::read(3, &byte, 1) < 0 && errno == EINTR) {
  }
  kill_processes_marked(leftovers.mark);
  remove_job_segments(leftovers.job, leftovers.mark);
  std::error_code ignored;
  if (!leftovers.directory.empty()) fs::remove_all(leftovers.directory, ignored);
  if (!leftovers.file.empty()) fs::remove(leftovers.file, ignored);
  ::_exit(0);
}

}  // namespace

int kill_processes_marked(const std::string& assignment) {
  return kill_until_none_is_found([&] { return marked(assignment); },
                                  [](pid_t pid) { return ::kill(pid, SIGKILL) == 0; }, kKillPatience);
}

int kill_until_none_is_found(const std::function<std::vector<pid_t>()>& find,
                             const std::function<bool(pid_t)>& kill, std::chrono::nanoseconds patience) {
  std::set<pid_t> killed;
  int rounds = 0;
  auto give_up = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < give_up) {
    const auto found = find();
    if (found.empty()) break;
    const auto before = killed.size();
    for (const pid_t pid : found) {
      if (kill(pid)) killed.insert(pid);
    }
    if (killed.size() > before) {
      if (++rounds == kRounds) break;
      give_up = std::chrono::steady_clock::now() + patience;
    }
    // A killed process ends only when it gets a processor, which takes time if others want one too.
    ::usleep(1000);
  }
  return static_cast<int>(killed.size());
}

int remove_job_segments(const std::string& job, const std::string& mark) {
  std::vector<std::string> prefixes{"troupe-" + mark.substr(mark.find('=') + 1) + "-"};
  // Those that hang in the kernel with the own mark do not count.
  auto others = marked("TROUPE_JOB_ID=" + job);
  const auto own = others.empty() ? others : marked(mark);
  std::erase_if(others, [&](pid_t pid) { return std::ranges::count(own, pid) > 0; });
  if (others.empty()) prefixes.push_back("troupe-" + job + "-");
  int removed = 0;
  std::error_code error;
  for (fs::directory_iterator entry("/dev/shm", error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (std::ranges::none_of(prefixes, [&](const auto& prefix) { return name.starts_with(prefix); }))
      continue;
    if (::unlink(entry->path().c_str()) == 0) ++removed;
  }
  return removed;
}

core::Result<JobGuard> JobGuard::start(JobLeftovers leftovers) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return core::fail(core::Errc::io, "cannot open a pipe for the job's guard: {}", ::strerror(errno));
  }
  const pid_t pid = ::fork();
  if (pid < 0) {
    return core::fail(core::Errc::io, "cannot start the job's guard: {}; see ulimit -u", ::strerror(errno));
  }
  if (pid == 0) {
    ::close(ends[1]);
    guard(leftovers, ends[0]);
  }
  ::close(ends[0]);
  return JobGuard(pid, ends[1]);
}

JobGuard::JobGuard(JobGuard&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), life_line_(std::exchange(other.life_line_, -1)) {}

JobGuard::~JobGuard() {
  if (pid_ == 0) return;
  ::close(life_line_);
  pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)), POLLIN, 0};
  if (::poll(&ended, 1, kPatienceMilliseconds) == 1) ::waitpid(pid_, nullptr, WNOHANG);
  ::close(ended.fd);
}

}  // namespace troupe::actors
