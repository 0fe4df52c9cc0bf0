#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/exit_status.hpp"
#include "core/result.hpp"

namespace asio {
class io_context;
}

namespace troupe::actors {

struct ProcessSpec {
  std::string program;                   ///< a path, not searched for
  std::vector<std::string> arguments;    ///< argv, the program's name included
  std::vector<std::string> environment;  ///< NAME=value, all of it
  std::vector<int> cpus;                 ///< where it may run; empty means where the parent may
};

enum class OutputStream { out, err };

/// Called from the event loop, never from inside spawn().
struct ProcessHandlers {
  std::function<void(OutputStream, std::string_view bytes)> output;
  /// All holders of the stream have closed it.
  std::function<void(OutputStream)> closed;
  /// The process ended, and everything it wrote was given to `output`. What it started and left in its group
  /// is killed by then.
  std::function<void(ExitStatus)> exited;
};

/// A child in a process group of its own, with stdin from /dev/null and its two outputs piped to us. It dies
/// with us (PR_SET_PDEATHSIG), so spawn only from the main thread: the kernel means the thread that forked.
/// The destructor kills the group of a child that still runs, and does not wait for it.
class Process {
 public:
  /// Errc::not_found or Errc::io when the program cannot be executed.
  static core::Result<std::unique_ptr<Process>> spawn(asio::io_context& loop, const ProcessSpec& spec,
                                                      ProcessHandlers handlers);
  ~Process();

  pid_t pid() const;
  bool running() const;
  /// To the child alone; nothing happens once it ended.
  void signal(int signal);
  void signal_group(int signal);
  /// Stops watching: no handler is called any more.
  void abandon();

 private:
  struct State;
  explicit Process(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // owned by this and by the handlers waiting in the loop
};

}  // namespace troupe::actors
