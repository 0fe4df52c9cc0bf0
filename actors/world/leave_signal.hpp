#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "actors/world/environment.hpp"
#include "actors/world/signal_watcher.hpp"

namespace troupe::actors {

/// SIGTERM to a rank. `troupe launch` sends it for one of two reasons.
///
/// A rank of the job has failed; then TROUPE_FAILURE_FILE is there and says which. Nothing that this process
/// does can count any more: it ends with kExitFenced, at once or, when the trainer listens, after half a
/// second in which it may end by itself and say what it knows.
///
/// Or somebody wants the job to leave. That ends the process as it ends any other, until the trainer listens,
/// which it does once it takes steps; then it is called instead, in a thread of the signal's own.
///
/// Make it early, as a SignalWatcher, and let it live as long as what may not end.
class LeaveSignal {
 public:
  explicit LeaveSignal(std::function<void()> leave, const Variables& variables = process_variables());
  ~LeaveSignal();

  /// From now on a wish to leave is the trainer's business.
  void listen();

 private:
  void on_signal();

  std::function<void()> leave_;
  std::optional<std::string> failure_file_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool listens_ = false;
  bool over_ = false;
  SignalWatcher watcher_;  // last: its thread uses all of the above
};

}  // namespace troupe::actors
