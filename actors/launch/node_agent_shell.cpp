#include "actors/launch/node_agent_shell.hpp"

#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

using core::Result;

NodeAgentShell::NodeAgentShell(const NodeAgentConfig& config, std::string job, Clock& clock,
                               Processes& processes, Gang& gang)
    : machine_(config),
      ranks_(config.ranks),
      job_(std::move(job)),
      clock_(clock),
      world_(processes),
      gang_(gang) {}

NodeAgentShell::~NodeAgentShell() {
  clock_.cancel(deadline_);
}

void NodeAgentShell::start() {
  perform(machine_.start(clock_.now()));
}

void NodeAgentShell::signalled(int signal) {
  perform(machine_.signalled(signal));
}

/// Effects may cause events that have effects in turn: they are performed one after another.
void NodeAgentShell::perform(NodeEffects effects) {
  for (NodeEffect& effect : effects) queue_.push_back(std::move(effect));
  if (performing_) return;
  performing_ = true;
  while (!queue_.empty()) {
    const NodeEffect effect = std::move(queue_.front());
    queue_.pop_front();
    std::visit([this](const auto& each) { on(each); }, effect);
  }
  performing_ = false;
}

void NodeAgentShell::on(const StartGang& effect) {
  processes_.resize(static_cast<std::size_t>(ranks_));
  const Result<void> began = gang_.begin(effect.generation);
  if (!began) return give_up_start(0, began.error());
  for (int rank = 0; rank < ranks_; ++rank) {
    const Result<void> started = spawn(rank);
    if (!started) return give_up_start(rank, started.error());
  }
}

Result<void> NodeAgentShell::spawn(int rank) {
  const ProcessSpec spec = TRY(gang_.prepare(rank));
  auto& process = processes_[static_cast<std::size_t>(rank)];
  process = TRY(world_.spawn(
      spec, {.output = [this, rank](OutputStream stream,
                                    std::string_view bytes) { gang_.output(rank, stream, bytes); },
             .closed = [this, rank](OutputStream stream) { gang_.closed(rank, stream); },
             .exited = [this, rank](ExitStatus status) { exited(rank, status); }}));
  gang_.started(rank, process->pid());
  return {};
}

void NodeAgentShell::give_up_start(int rank, const core::Error& error) {
  gang_.not_started(rank, error);
  perform(machine_.start_failed(rank));
}

void NodeAgentShell::exited(int rank, ExitStatus status) {
  if (!status.success()) {
    if (const auto step = gang_.committed_step()) machine_.committed(*step);
  }
  const bool first = !status.success() && machine_.state() == "watching";
  NodeEffects effects = machine_.exited(rank, status, clock_.now());
  // Before the others are asked to end: this is how they learn why.
  if (first) gang_.failed(rank, status);
  perform(std::move(effects));
}

void NodeAgentShell::on(const SignalRank& effect) {
  Process* process = processes_[static_cast<std::size_t>(effect.rank)].get();
  if (!process) return;
  if (effect.only_if_handled && !process->handles(effect.signal))
    return gang_.withheld(effect.rank, effect.signal);
  effect.group ? process->signal_group(effect.signal) : process->signal(effect.signal);
}

void NodeAgentShell::on(const ArmDeadline& effect) {
  clock_.cancel(deadline_);
  deadline_ = clock_.arm(effect.after, [this] { perform(machine_.deadline(clock_.now())); });
}

void NodeAgentShell::on(const CancelDeadline&) {
  clock_.cancel(std::exchange(deadline_, 0));
}

void NodeAgentShell::on(const EndGeneration& effect) {
  const int cleared = world_.clear_away(job_);
  gang_.ended(effect, cleared);
  processes_.clear();
}

void NodeAgentShell::on(const Finish& effect) {
  gang_.finished(effect.exit_code);
}

}  // namespace troupe::actors
