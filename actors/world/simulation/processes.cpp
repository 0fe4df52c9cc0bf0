#include "actors/world/simulation/processes.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

using core::Result;

/// Owned by the Child and by pending actions of the loop.
struct SimulatedProcesses::State {
  SimulatedProgram program;
  ProcessHandlers handlers;
  int pid = 0;
  std::string mark;
  bool running = true;
  bool watched = true;
  bool was_stopped = false;  ///< at the last call of wake()
};

class SimulatedProcesses::Child final : public Process {
 public:
  Child(SimulatedProcesses& world, std::shared_ptr<State> state) : world_(world), state_(std::move(state)) {}
  ~Child() override {
    state_->watched = false;
    world_.deliver(state_, SIGKILL);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::int64_t pid() const override { return state_->pid; }
  void signal(int signal) override { world_.deliver(state_, signal); }
  bool handles(int) const override { return state_->running; }
  void signal_group(int signal) override { world_.deliver(state_, signal); }
  bool is_stopped() const override { return state_->running && state_->program.is_stopped; }
  bool wake() override {
    if (!is_stopped()) return false;
    if (!std::exchange(state_->was_stopped, true)) return false;
    state_->program.is_stopped = false;
    world_.end_after(std::chrono::nanoseconds(0), state_, state_->program.ending);
    return true;
  }

 private:
  SimulatedProcesses& world_;
  std::shared_ptr<State> state_;
};

Result<std::unique_ptr<Process>> SimulatedProcesses::spawn(const ProcessSpec& spec,
                                                           ProcessHandlers handlers) {
  SimulatedProgram program = TRY(script_(spec, started_));
  const auto is_mark = [](const std::string& each) { return each.starts_with("TROUPE_JOB_ID="); };
  const auto mark = std::find_if(spec.environment.begin(), spec.environment.end(), is_mark);
  ++started_;
  ++running_;
  auto state = std::make_shared<State>(
      State{std::move(program), std::move(handlers), started_, mark == spec.environment.end() ? "" : *mark});
  left_behind_[state->mark] += state->program.leaves_behind;
  running_ += state->program.leaves_behind;
  if (!state->program.errors.empty()) {
    loop_.schedule(std::chrono::nanoseconds(0), "process writes", [state] {
      if (state->watched && state->running) state->handlers.output(OutputStream::err, state->program.errors);
    });
  }
  if (state->program.lifetime) end_after(*state->program.lifetime, state, state->program.ending);
  return std::make_unique<Child>(*this, std::move(state));
}

void SimulatedProcesses::deliver(const std::shared_ptr<State>& child, int signal) {
  if (!child->running) return;
  ++signals_;
  if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGCONT) return;
  if (signal == SIGKILL) {
    if (!child->program.is_stuck) end_after(std::chrono::nanoseconds(0), child, {0, signal});
  } else if (child->program.obeys_after) {
    end_after(*child->program.obeys_after, child, {0, signal});
  }
}

void SimulatedProcesses::end_after(std::chrono::nanoseconds delay, const std::shared_ptr<State>& child,
                                   ExitStatus status) {
  loop_.schedule(delay, "process ends", [this, child, status] { end(child, status); });
}

void SimulatedProcesses::end(const std::shared_ptr<State>& child, ExitStatus status) {
  if (!child->running) return;
  child->running = false;
  --running_;
  if (!child->watched) return;
  for (OutputStream stream : {OutputStream::out, OutputStream::err}) child->handlers.closed(stream);
  child->handlers.exited(status);
}

int SimulatedProcesses::clear_away(const std::string&, const std::string& mark) {
  const int killed = std::exchange(left_behind_[mark], 0);
  running_ -= killed;
  return killed;
}

}  // namespace troupe::actors
