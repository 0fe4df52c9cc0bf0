#pragma once

#include <functional>
#include <memory>

namespace troupe::actors {

/// Calls a function in its own thread whenever the process gets a signal, whichever thread gets it: libraries
/// (OpenBLAS, when it is loaded) start threads that block nothing. The thread that creates the watcher, and
/// those that it starts later, block the signal, so that it does not interrupt them.
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
