#include "actors/world/signal_watcher.hpp"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <thread>

namespace troupe::actors {

struct SignalWatcher::State {
  int signal = 0;
  std::function<void()> on_signal;
  std::atomic<bool> stopping{false};
  std::jthread thread;

  void watch() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    for (int caught = 0; sigwait(&set, &caught) == 0 && !stopping;) on_signal();
  }
};

SignalWatcher::SignalWatcher(int signal, std::function<void()> on_signal)
    : state_(std::make_unique<State>()) {
  state_->signal = signal;
  state_->on_signal = std::move(on_signal);
  sigset_t everything;
  sigset_t before;
  sigfillset(&everything);
  // The watcher's thread takes only its own signal: those of watchers created later must not end the process
  // here.
  pthread_sigmask(SIG_SETMASK, &everything, &before);
  state_->thread = std::jthread([state = state_.get()] {
    pthread_setname_np(pthread_self(), "troupe-signals");
    state->watch();
  });
  sigaddset(&before, signal);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SignalWatcher::~SignalWatcher() {
  state_->stopping = true;
  pthread_kill(state_->thread.native_handle(), state_->signal);
}

}  // namespace troupe::actors
