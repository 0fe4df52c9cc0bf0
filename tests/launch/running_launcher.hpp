#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace troupe::apps {

/// Looks until it is so, for at most `patience`. Returns whether it is.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds patience = std::chrono::seconds(20));

/// A directory that is gone with its object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);
std::vector<std::string> lines_of(const std::string& text);
/// The lines "[rank 2] pid 1234" as a map.
std::map<int, pid_t> pids_in(const std::string& out);

struct Outcome {
  int exit_code = -1;  ///< 128+n when signal n killed the launcher itself
  std::string out;
  std::string err;
};

/// A real `troupe launch`. All processes that come from it carry a mark in their environment, by which the
/// test finds what is left of them.
class RunningLauncher {
 public:
  /// `before_exec` runs in the launcher's process, last before it becomes the launcher.
  explicit RunningLauncher(std::vector<std::string> arguments, std::vector<std::string> environment = {},
                           const std::function<void()>& before_exec = {});
  /// Kills what is left.
  ~RunningLauncher();

  pid_t pid() const { return pid_; }
  std::string out() const;
  std::string err() const;
  /// A file in the ranks' TMPDIR.
  void put_file(const std::string& name, const std::string& text) const;
  /// Waits until stdout holds this many lines.
  bool wait_for_lines(std::size_t count) const;
  void signal(int signal) const;
  /// Waits for the launcher's end; a launcher that takes longer than `patience` is a failure.
  Outcome wait(std::chrono::milliseconds patience = std::chrono::seconds(30));

  /// The launcher's processes that are alive, itself and its guard included.
  std::vector<pid_t> processes() const;
  /// The job's name, from what the launcher says at its start.
  std::string job() const;
  std::vector<std::string> segments() const;

 private:
  TemporaryDirectory directory_;
  std::string mark_;
  pid_t pid_ = -1;
};

/// Runs to the end, and expects that no process, segment or temporary file is left.
Outcome launch(std::vector<std::string> arguments, std::vector<std::string> environment = {});

}  // namespace troupe::apps
