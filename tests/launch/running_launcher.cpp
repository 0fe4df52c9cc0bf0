#include "tests/launch/running_launcher.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

namespace troupe::apps {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

bool eventually(const std::function<bool()>& condition, milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (fs::temp_directory_path() / "launch-test-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::map<int, pid_t> pids_in(const std::string& out) {
  std::map<int, pid_t> pids;
  for (const std::string& line : lines_of(out)) {
    int rank = 0;
    int pid = 0;
    if (std::sscanf(line.c_str(), "[rank %d] pid %d", &rank, &pid) == 2) pids[rank] = pid;
  }
  return pids;
}

RunningLauncher::RunningLauncher(std::vector<std::string> arguments, std::vector<std::string> environment,
                                 const std::function<void()>& before_exec) {
  mark_ = "TROUPE_TEST_MARK=" + directory_.path().string();
  fs::create_directory(directory_.path() / "tmp");
  environment.push_back(mark_);
  environment.push_back("TMPDIR=" + (directory_.path() / "tmp").string());
  arguments.insert(arguments.begin(), {TROUPE_BINARY, "launch"});

  pid_ = ::fork();
  if (pid_ != 0) return;
  // The test itself may run under nohup or in a shell's background.
  for (int signal : {SIGHUP, SIGINT, SIGQUIT}) ::signal(signal, SIG_DFL);
  std::vector<char*> words;
  for (std::string& word : arguments) words.push_back(word.data());
  words.push_back(nullptr);
  for (std::string& assignment : environment) ::putenv(assignment.data());
  for (const auto& [fd, name] : {std::pair(1, "out"), std::pair(2, "err")}) {
    const std::string path = directory_.path() / name;
    ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), fd);
  }
  ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
  // A descriptor that a careless parent left open; the ranks are not to see it.
  ::dup2(2, 9);
  if (before_exec) before_exec();
  ::execv(words[0], words.data());
  ::_exit(127);
}

RunningLauncher::~RunningLauncher() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (pid_t left : processes()) ::kill(left, SIGKILL);
}

std::string RunningLauncher::out() const {
  return read_file(directory_.path() / "out");
}
std::string RunningLauncher::err() const {
  return read_file(directory_.path() / "err");
}

void RunningLauncher::put_file(const std::string& name, const std::string& text) const {
  std::ofstream(directory_.path() / "tmp" / name) << text;
}

bool RunningLauncher::wait_for_lines(std::size_t count) const {
  return eventually([&] { return lines_of(out()).size() >= count; });
}

void RunningLauncher::signal(int signal) const {
  ::kill(pid_, signal);
}

Outcome RunningLauncher::wait(milliseconds patience) {
  int status = 0;
  if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, patience)) {
    ADD_FAILURE() << "the launcher does not end; it said:\n" << err();
    return {};
  }
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out(), err()};
}

std::vector<pid_t> RunningLauncher::processes() const {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const pid_t pid = ::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const std::string environment = read_file(entry.path() / "environ");
    if (environment.find(mark_) != std::string::npos) found.push_back(pid);
  }
  return found;
}

std::string RunningLauncher::job() const {
  const std::string text = err();
  const std::string before = "[troupe] job ";
  const std::size_t start = text.find(before);
  if (start == std::string::npos) return {};
  return text.substr(start + before.size(), text.find(':', start) - start - before.size());
}

std::vector<std::string> RunningLauncher::segments() const {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (!job().empty() && name.find(job()) != std::string::npos) found.push_back(name);
  }
  for (const auto& entry : fs::directory_iterator(directory_.path() / "tmp")) found.push_back(entry.path());
  return found;
}

Outcome launch(std::vector<std::string> arguments, std::vector<std::string> environment) {
  RunningLauncher launcher(std::move(arguments), std::move(environment));
  Outcome outcome = launcher.wait();
  EXPECT_TRUE(launcher.processes().empty()) << "processes are left; the launcher said:\n" << outcome.err;
  EXPECT_TRUE(launcher.segments().empty()) << launcher.segments().front() << " is left";
  return outcome;
}

}  // namespace troupe::apps
