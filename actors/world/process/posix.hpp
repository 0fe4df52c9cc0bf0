#pragma once

#include <memory>
#include <string>

#include "actors/world/process.hpp"

namespace asio {
class io_context;
}

namespace troupe::actors {

/// Children of this process, each in a process group of its own, with stdin from /dev/null and its two
/// outputs piped to us. A child dies with us (PR_SET_PDEATHSIG), so spawn only from the main thread: the
/// kernel means the thread that forked. What a child started and left in its group is killed before its end
/// is told.
class PosixProcesses final : public Processes {
 public:
  /// `loop` outlives this and its processes, and calls their handlers.
  explicit PosixProcesses(asio::io_context& loop) : loop_(loop) {}

  core::Result<std::unique_ptr<Process>> spawn(const ProcessSpec& spec, ProcessHandlers handlers) override;
  int clear_away(const std::string& job) override;

 private:
  asio::io_context& loop_;
};

}  // namespace troupe::actors
