#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/world/process.hpp"
#include "actors/world/simulation/event_loop.hpp"

namespace troupe::actors {

/// What a simulated program does while it runs.
struct SimulatedProgram {
  /// When it ends by itself, counted from its start; empty: only a signal ends it.
  std::optional<std::chrono::nanoseconds> lifetime;
  ExitStatus ending;   ///< how it ends by itself
  std::string errors;  ///< written to stderr at its start
  /// How long after SIGTERM, SIGINT, SIGHUP or SIGQUIT that signal ends it; empty: it ignores them.
  std::optional<std::chrono::nanoseconds> obeys_after = std::chrono::nanoseconds(0);
  /// Not even SIGKILL ends it: it hangs in the kernel.
  bool is_stuck = false;
  /// It was stopped by a signal, and does nothing before wake(), then ends as `ending` says.
  bool is_stopped = false;
  int leaves_behind = 0;  ///< processes outside its group, which outlive it
};

/// Processes under virtual time. SIGUSR1, SIGUSR2 and SIGCONT change nothing. Processes must not outlive it.
class SimulatedProcesses final : public Processes {
 public:
  /// Says what a program does, or why it cannot be executed. `number` counts the starts from 0.
  using Script = std::function<core::Result<SimulatedProgram>(const ProcessSpec& spec, int number)>;

  SimulatedProcesses(EventLoop& loop, Script script) : loop_(loop), script_(std::move(script)) {}

  core::Result<std::unique_ptr<Process>> spawn(const ProcessSpec& spec, ProcessHandlers handlers) override;
  int clear_away(const std::string& job, const std::string& mark) override;

  int started() const { return started_; }
  int signals() const { return signals_; }  ///< sent to running processes
  /// Running processes, including those that were left behind or that nothing watches any more.
  int running() const { return running_; }

 private:
  struct State;
  class Child;
  void end(const std::shared_ptr<State>& child, ExitStatus status);
  void end_after(std::chrono::nanoseconds delay, const std::shared_ptr<State>& child, ExitStatus status);
  void deliver(const std::shared_ptr<State>& child, int signal);

  EventLoop& loop_;
  Script script_;
  int started_ = 0;
  int signals_ = 0;
  int running_ = 0;
  std::map<std::string, int> left_behind_;  ///< by their mark, TROUPE_JOB_ID=<job>
};

}  // namespace troupe::actors
