#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/result.hpp"

namespace troupe::actors {

/// Kills every process of this user whose environment contains `assignment` ("NAME=value"), and what they
/// start meanwhile. Returns how many it killed. Blocks until they have ended, or for two seconds if some do
/// not.
int kill_processes_marked(const std::string& assignment);

/// The same for whatever `find` finds and `kill` kills, until it finds none. Gives up once no new one was
/// found for as long as `patience`: a process that hangs in the kernel ends when the kernel lets it.
int kill_until_none_is_found(const std::function<std::vector<pid_t>()>& find,
                             const std::function<bool(pid_t)>& kill, std::chrono::nanoseconds patience);

/// Removes what is in /dev/shm of the launcher with this mark ("NAME=value"), troupe-<value>-*, and the job's
/// segments, troupe-<job>-*, unless another launcher on this host has processes of the job. Returns how many
/// there were.
int remove_job_segments(const std::string& job, const std::string& mark);

/// What must be gone when a job has ended, even if its launcher was killed.
struct JobLeftovers {
  std::string job;                  ///< segments troupe-<job>-*
  std::string mark;                 ///< processes with this NAME=value in their environment
  std::filesystem::path directory;  ///< removed with its contents; empty: none
  std::filesystem::path file;       ///< removed; empty: none
};

/// A small process that briefly outlives the launcher. When the launcher dies, however it dies, the guard
/// removes the leftovers. It is in its own session, so that a Ctrl-C does not reach it.
class JobGuard {
 public:
  /// Forks: call it while there is only one thread, and while stdin, stdout and stderr are open. The guard
  /// keeps no descriptor of the caller.
  static core::Result<JobGuard> start(JobLeftovers leftovers);

  JobGuard(JobGuard&& other) noexcept;
  JobGuard& operator=(JobGuard&&) = delete;
  /// Lets the guard do its work now and waits until it ends.
  ~JobGuard();

 private:
  JobGuard(pid_t pid, int life_line) : pid_(pid), life_line_(life_line) {}

  pid_t pid_;
  int life_line_;  ///< the guard sees when this end closes
};

}  // namespace troupe::actors
