#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/errors.hpp"

namespace troupe::apps {

/// The processes of the ranks. What still runs at the end is killed, and all are waited for.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    for (const pid_t child : pids_) kill(child, SIGKILL);
    for (const pid_t child : pids_) waitpid(child, nullptr, 0);
  }

  template <class Body>
  core::Result<void> start(Body body) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) return core::fail(core::Errc::unavailable, "bench: cannot start a process for a rank");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(getppid() == parent ? body() : 1);
    }
    pids_.push_back(child);
    return {};
  }

  /// Waits for all; false when one failed, which ends the others.
  bool wait() {
    bool good = true;
    while (!pids_.empty()) {
      int status = 0;
      const pid_t child = waitpid(-1, &status, 0);
      if (child < 0) return false;
      if (std::erase(pids_, child) == 0 || status == 0) continue;
      good = false;
      for (const pid_t other : pids_) kill(other, SIGKILL);
    }
    return good;
  }

 private:
  std::vector<pid_t> pids_;
};

/// A fresh directory, removed at the end.
class TemporaryDirectory {
 public:
  /// In `parent`, or in the system's temporary directory where it is empty. Errc::io where none can be made.
  static core::Result<TemporaryDirectory> create(std::filesystem::path parent = {}) {
    std::error_code error;
    if (parent.empty()) parent = std::filesystem::temp_directory_path(error);
    if (error)
      return core::fail(core::Errc::io, "bench: no temporary directory ({}); set TMPDIR to one",
                        error.message());
    std::string pattern = (parent / "troupe-bench-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      return core::fail(core::Errc::io, "bench: cannot make a directory in {}: {}", parent.string(),
                        std::generic_category().message(errno));
    return TemporaryDirectory(std::move(pattern));
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
};

}  // namespace troupe::apps
