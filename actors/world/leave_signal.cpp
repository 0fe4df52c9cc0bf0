#include "actors/world/leave_signal.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "actors/world/exit_status.hpp"

namespace troupe::actors {

namespace {

/// For a trainer that has noticed the failure itself and is about to report it.
constexpr auto kGrace = std::chrono::milliseconds(500);

std::atomic<bool> asked_to_leave = false;

/// What the launcher wrote; empty if no rank has failed.
std::optional<std::string> read_failure(const std::optional<std::string>& path) {
  if (!path) return std::nullopt;
  std::ifstream file(*path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

[[noreturn]] void end_as_any_other_process() {
  ::signal(SIGTERM, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::raise(SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::_exit(128 + SIGTERM);
}

[[noreturn]] void end_with_the_job(const std::string& failure) {
  const auto line = fmt::format("this rank ends with its job: {}\n", failure);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(kExitFenced);
}

}  // namespace

LeaveSignal::LeaveSignal(std::function<void()> leave, const Variables& variables)
    : leave_(std::move(leave)),
      failure_file_(variables("TROUPE_FAILURE_FILE")),
      watcher_(SIGTERM, [this] { on_signal(); }) {}

LeaveSignal::~LeaveSignal() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
}

void LeaveSignal::listen() {
  std::lock_guard lock(mutex_);
  listens_ = true;
}

bool LeaveSignal::is_asked() {
  return asked_to_leave;
}

void LeaveSignal::on_signal() {
  const auto failure = read_failure(failure_file_);
  std::unique_lock lock(mutex_);
  if (failure) {
    if (listens_) changed_.wait_for(lock, kGrace, [this] { return over_; });
    if (!over_) end_with_the_job(*failure);
  } else if (listens_) {
    lock.unlock();
    asked_to_leave = true;
    leave_();
  } else {
    end_as_any_other_process();
  }
}

}  // namespace troupe::actors
