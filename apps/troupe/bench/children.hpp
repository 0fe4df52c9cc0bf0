#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
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
  /// In the system's temporary directory, or in `parent`.
  explicit TemporaryDirectory(const std::filesystem::path& parent = {}) {
    const auto where = parent.empty() ? std::filesystem::temp_directory_path() : parent;
    std::string pattern = (where / "troupe-bench-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace troupe::apps
