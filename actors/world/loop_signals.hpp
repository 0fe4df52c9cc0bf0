#pragma once

#include <signal.h>

#include <functional>
#include <map>
#include <memory>
#include <set>

namespace asio {
class io_context;
}

namespace troupe::actors {

/// Calls a function on the thread that runs the loop whenever the process gets one of these signals; what
/// they did before, they do again afterwards. A SIGHUP that was ignored from the start stays ignored, as
/// nohup intends. `loop` must outlive it.
class LoopSignals {
 public:
  LoopSignals(asio::io_context& loop, const std::set<int>& signals, std::function<void(int)> on_signal);
  ~LoopSignals();
  LoopSignals(const LoopSignals&) = delete;
  LoopSignals& operator=(const LoopSignals&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;  // owned by this and by what waits in the loop
  std::map<int, struct sigaction> before_;
};

}  // namespace troupe::actors
