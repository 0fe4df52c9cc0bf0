#pragma once

#include <functional>
#include <memory>

namespace troupe::actors {

/// Calls a function in its own thread whenever the process gets a signal. The signal is blocked in the thread
/// that creates the watcher and in all threads that this thread starts later, so create it early.
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
