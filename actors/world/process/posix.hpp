#pragma once

#include <memory>
#include <string>

#include "actors/world/process.hpp"

namespace asio {
class io_context;
}

namespace troupe::actors {

/// Children of this process, each in its own process group, with stdin from /dev/null and its two outputs
/// piped to us. A child dies with us (PR_SET_PDEATHSIG), so spawn only from the main thread: for the kernel
/// the parent is the thread that forked. What a child started and left in its group is killed before its end
/// is reported.
class PosixProcesses final : public Processes {
 public:
  /// `loop` must outlive this and its processes; it calls their handlers.
  explicit PosixProcesses(asio::io_context& loop) : loop_(loop) {}

  core::Result<std::unique_ptr<Process>> spawn(const ProcessSpec& spec, ProcessHandlers handlers) override;
  int clear_away(const std::string& job, const std::string& mark) override;

 private:
  asio::io_context& loop_;
};

}  // namespace troupe::actors
