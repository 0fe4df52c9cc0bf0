#pragma once

#include <functional>
#include <memory>

namespace troupe::actors {

/// Calls a function in a thread of its own whenever the process gets a signal. The signal is blocked in the
/// thread that makes the watcher and in all threads which that one starts later, so make it early.
class SignalWatcher {
 public:
  SignalWatcher(int signal, std::function<void()> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::actors
