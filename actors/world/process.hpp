#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/exit_status.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct ProcessSpec {
  std::string program;                   ///< a path; it is not searched for
  std::vector<std::string> arguments;    ///< argv, including the program's name
  std::vector<std::string> environment;  ///< NAME=value; the whole environment
  std::vector<int> cpus;                 ///< where it may run; empty means where the parent may
  int input = -1;                        ///< its standard input, which stays the caller's; -1: /dev/null
};

enum class OutputStream { out, err };

/// Called from the event loop, never from within spawn(), and not after the Process is destroyed. A handler
/// may destroy its own Process.
struct ProcessHandlers {
  std::function<void(OutputStream, std::string_view bytes)> output;
  /// All holders of the stream have closed it.
  std::function<void(OutputStream)> closed;
  /// The process ended, and everything it wrote was passed to `output`. Called once.
  std::function<void(ExitStatus)> exited;
};

/// A child process and what it starts: its group. The destructor kills the group of a child that is still
/// running, and does not wait for it.
class Process {
 public:
  virtual ~Process() = default;

  virtual std::int64_t pid() const = 0;
  /// To the child alone; does nothing once it has ended.
  virtual void signal(int signal) = 0;
  /// Whether the child itself has chosen what the signal does, so that it does not end it by default. A child
  /// that has just begun has chosen nothing yet.
  virtual bool handles(int signal) const = 0;
  virtual void signal_group(int signal) = 0;
  /// Whether one of the group was stopped by a signal, as far as can be known here.
  virtual bool is_stopped() const = 0;
  /// Lets the group go on (SIGCONT) if one of it is stopped, and was so at the last call too. Returns whether
  /// it did.
  virtual bool wake() = 0;
};

/// Starts processes: real ones (process/posix.hpp), or those of a simulation (simulation/processes.hpp).
class Processes {
 public:
  virtual ~Processes() = default;

  /// Errc::not_found or Errc::io if the program cannot be executed.
  virtual core::Result<std::unique_ptr<Process>> spawn(const ProcessSpec& spec, ProcessHandlers handlers) = 0;
  /// Kills all processes with `mark`, NAME=value, in their environment, whichever group they are in, and
  /// removes the job's shared memory. Returns how many it killed.
  virtual int clear_away(const std::string& job, const std::string& mark) = 0;
};

}  // namespace troupe::actors
