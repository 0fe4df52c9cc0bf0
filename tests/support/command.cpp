#include "tests/support/command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "tests/support/environment.hpp"

namespace troupe::tests {

namespace {

[[noreturn]] void become(const std::vector<std::string>& arguments, int output) {
  setpgid(0, 0);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

bool drain(int from, std::string& into) {
  std::array<char, 4096> bytes;
  pollfd poller{from, POLLIN, 0};
  while (poll(&poller, 1, 1) > 0) {
    auto count = read(from, bytes.data(), bytes.size());
    if (count <= 0) return false;
    into.append(bytes.data(), static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& arguments, std::chrono::seconds patience,
                          const std::function<void()>& during) {
  return run_command(arguments, patience, [&](const std::string&) {
    if (during) during();
  });
}

CommandResult run_command(const std::vector<std::string>& arguments, std::chrono::seconds patience,
                          const std::function<void(const std::string&)>& during) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  pid_t child = fork();
  if (child == 0) become(arguments, ends[1]);
  close(ends[1]);
  CommandResult result;
  auto give_up = std::chrono::steady_clock::now() + patience * patience_factor();
  bool late = false;
  while (drain(ends[0], result.output)) {
    during(result.output);
    if (std::chrono::steady_clock::now() < give_up) continue;
    late = true;
    kill(-child, SIGKILL);
    break;
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  kill(-child, SIGKILL);
  result.exit_code = late ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::map<int, std::string> environments_with(const std::string& variable) {
  std::map<int, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    std::string environment{std::istreambuf_iterator<char>(file), {}};
    environment.insert(environment.begin(), '\0');
    if (environment.find('\0' + variable + '\0') != std::string::npos) found[pid] = std::move(environment);
  }
  return found;
}

std::optional<int> number_in(const std::string& environment, const std::string& name) {
  const auto start = environment.find('\0' + name + '=');
  if (start == std::string::npos) return std::nullopt;
  return std::atoi(environment.c_str() + start + name.size() + 2);
}

std::vector<int> processes_with(const std::string& variable) {
  std::vector<int> found;
  for (const auto& [pid, environment] : environments_with(variable)) found.push_back(pid);
  return found;
}

std::vector<std::string> segments_with(const std::string& text) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    auto name = entry.path().filename().string();
    if (name.starts_with("troupe-") && name.find(text) != std::string::npos) found.push_back(name);
  }
  return found;
}

}  // namespace troupe::tests
