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
/// If a rank of the job has failed, TROUPE_FAILURE_FILE exists and says which. Nothing that this process does
/// can count any more: it ends with kExitFenced, immediately or, if the trainer listens, after half a second
/// in which it may end by itself and report what it knows.
///
/// Otherwise the job is asked to leave. That ends the process like any other, until the trainer listens,
/// which it does once it takes steps; then `leave` is called instead, in a thread of the signal's own.
///
/// Create it early, like a SignalWatcher, and keep it alive as long as what must not be ended.
class LeaveSignal {
 public:
  explicit LeaveSignal(std::function<void()> leave, const Variables& variables = process_variables());
  ~LeaveSignal();

  /// From now on the trainer handles requests to leave.
  void listen();
  /// Whether `leave` was called, of any object of this process.
  static bool is_asked();

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
