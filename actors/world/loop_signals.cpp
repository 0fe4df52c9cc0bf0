#include "actors/world/loop_signals.hpp"

#include <signal.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <utility>

namespace troupe::actors {

struct LoopSignals::State : std::enable_shared_from_this<State> {
  State(asio::io_context& loop, std::function<void(int)> handler)
      : set(loop), on_signal(std::move(handler)) {}

  void wait() {
    set.async_wait([self = shared_from_this()](const std::error_code& error, int signal) {
      if (error || !self->listening) return;
      self->on_signal(signal);
      self->wait();
    });
  }

  asio::signal_set set;
  std::function<void(int)> on_signal;
  bool listening = true;
};

LoopSignals::LoopSignals(asio::io_context& loop, const std::set<int>& signals,
                         std::function<void(int)> on_signal)
    : state_(std::make_shared<State>(loop, std::move(on_signal))) {
  std::error_code ignored;
  for (int signal : signals) {
    struct sigaction inherited {};
    ::sigaction(signal, nullptr, &inherited);
    if (signal == SIGHUP && inherited.sa_handler == SIG_IGN) continue;
    before_[signal] = inherited;
    state_->set.add(signal, ignored);
  }
  state_->wait();
}

LoopSignals::~LoopSignals() {
  std::error_code ignored;
  state_->listening = false;
  state_->set.clear(ignored);
  state_->set.cancel(ignored);
  for (const auto& [signal, inherited] : before_) ::sigaction(signal, &inherited, nullptr);
}

}  // namespace troupe::actors
