#include "actors/world/signal_watcher.hpp"

#include <pthread.h>
#include <signal.h>

#include <asio/io_context.hpp>
#include <set>
#include <thread>

#include "actors/world/loop_signals.hpp"

namespace troupe::actors {

struct SignalWatcher::State {
  State(int signal, std::function<void()> on_signal)
      : signals(loop, std::set<int>{signal}, [on_signal = std::move(on_signal)](int) { on_signal(); }) {}
  ~State() { loop.stop(); }

  asio::io_context loop{1};
  LoopSignals signals;
  std::jthread thread;  // last: it runs the loop
};

SignalWatcher::SignalWatcher(int signal, std::function<void()> on_signal)
    : state_(std::make_unique<State>(signal, std::move(on_signal))) {
  sigset_t others;
  sigset_t before;
  sigfillset(&others);
  sigdelset(&others, signal);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  state_->thread = std::jthread([&loop = state_->loop] {
    pthread_setname_np(pthread_self(), "troupe-signals");
    loop.run();
  });
  sigaddset(&before, signal);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SignalWatcher::~SignalWatcher() = default;

}  // namespace troupe::actors
