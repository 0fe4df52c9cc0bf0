#include "actors/launch/node_agent_shell.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/disregard.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using core::Result;

namespace {

/// A rank that is stopped is let go on after twice this at most.
constexpr std::chrono::seconds kLookForStopped{5};

}  // namespace

NodeAgentShell::NodeAgentShell(const NodeAgentConfig& config, Clock& clock, Gang& gang)
    : machine_(config),
      look_interval_(config.in_place ? config.look_interval : std::chrono::nanoseconds(0)),
      clock_(clock),
      gang_(gang) {}

NodeAgentShell::~NodeAgentShell() {
  clock_.cancel(deadline_);
  clock_.cancel(look_);
  clock_.cancel(waiting_);
}

void NodeAgentShell::start() {
  perform(machine_.start(clock_.now()));
  look_for_waiting();
}

void NodeAgentShell::adopt(const Adopted& adopted) {
  processes_.resize(static_cast<std::size_t>(machine_.slot_count()));
  for (const int slot : adopted.running)
    processes_[slot] = gang_.adopt(slot, [this, slot](ExitStatus status) { exited(slot, status); });
  perform(machine_.adopt(adopted, clock_.now()));
  look_for_waiting();
}

void NodeAgentShell::look_for_waiting() {
  if (look_interval_ == std::chrono::nanoseconds(0) || machine_.state() == "finished") return;
  waiting_ = clock_.arm(look_interval_, [this] {
    if (machine_.is_rebuilding()) {
      if (gang_.standing_of(machine_.slots()).is_formed) perform(machine_.formed());
      perform(machine_.unnoticed_by(gang_.standing_by(machine_.slots()), clock_.now()));
    }
    if (machine_.has_newcomers() && gang_.standing_of(machine_.slots()).all_stay) perform(machine_.take_in());
    look_at_spares();
    const auto waiting = gang_.waiting_of(machine_.slots());
    if (std::find(waiting.begin(), waiting.end(), true) != waiting.end()) note_stopped();
    perform(machine_.waited_for(waiting, clock_.now()));
    look_for_waiting();
  });
}

void NodeAgentShell::look_at_spares() {
  const std::vector<int> spares(machine_.spares().begin(), machine_.spares().end());
  if (spares.empty()) return;
  const auto ready = gang_.standing_by(spares);
  std::vector<int> slots;
  for (std::size_t i = 0; i < std::min(spares.size(), ready.size()); ++i) {
    if (ready[i]) slots.push_back(spares[i]);
  }
  perform(machine_.stand_by(slots, clock_.now()));
}

void NodeAgentShell::signalled(int signal) {
  NodeEffects effects = machine_.signalled(signal);
  if (machine_.state() == "stopping" && machine_.is_rebuilding() &&
      !gang_.standing_of(machine_.slots()).is_formed)
    gang_.stopped_while_forming();
  perform(std::move(effects));
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
  const auto& slots = effect.slots;
  const Result<void> began = gang_.begin(effect);
  if (!began) return not_started(slots, began.error());
  for (std::size_t rank = 0; rank < slots.size(); ++rank) {
    if (const auto started = start_process({slots[rank], static_cast<int>(rank)}); !started)
      return not_started({slots.begin() + static_cast<std::ptrdiff_t>(rank), slots.end()}, started.error());
  }
}

void NodeAgentShell::on(const ReplaceRanks& effect) {
  for (const auto& loss : effect.losses) {
    const int slot = loss.ending.slot;
    const auto replace = [&]() -> Result<void> {
      if (&loss == &effect.losses.front()) TRY(gang_.replacing(effect));
      if (loss.remedy != Remedy::start_again) return {};
      return start_process({slot, machine_.rank_of(slot)});
    };
    if (const auto replaced = replace(); !replaced) {
      gang_.failed(loss.ending.rank, loss.ending.status);
      return not_started({machine_.rank_of(slot) ? slot : effect.slots.front()}, replaced.error());
    }
  }
}

void NodeAgentShell::on(const FormAgain& effect) {
  if (const auto told = gang_.forming_again(effect); !told) not_started({effect.slots.front()}, told.error());
}

void NodeAgentShell::on(const AskToWait& effect) {
  core::disregard(gang_.ask_to_wait(effect), "they go on as they are");
}

void NodeAgentShell::on(const AdmitSpares& effect) {
  if (const auto told = gang_.admitting(effect); !told) not_started({effect.slots.front()}, told.error());
}

void NodeAgentShell::on(const StartSpare& effect) {
  // What the gang is started for may have failed meanwhile.
  if (machine_.state() == "watching" && start_process({effect.slot, {}})) return;
  perform(machine_.spare_exited(effect.slot, {127, 0}, false));
}

void NodeAgentShell::on(const SpareLost& effect) {
  gang_.lost_spare(effect);
}

Result<void> NodeAgentShell::start_process(ProcessPlace place) {
  auto process =
      TRY(gang_.start(place, [this, slot = place.slot](ExitStatus status) { exited(slot, status); }));
  processes_.resize(static_cast<std::size_t>(machine_.slot_count()));
  processes_[place.slot] = std::move(process);
  return {};
}

Process* NodeAgentShell::process_of(int rank) const {
  const auto slot = static_cast<std::size_t>(machine_.slots()[static_cast<std::size_t>(rank)]);
  return slot < processes_.size() ? processes_[slot].get() : nullptr;
}

std::vector<int> NodeAgentShell::slots_of_others(int rank) const {
  auto slots = machine_.slots();
  slots.erase(slots.begin() + rank);
  return slots;
}

void NodeAgentShell::not_started(const std::vector<int>& slots, const core::Error& error) {
  gang_.not_started(machine_.rank_of(slots.front()).value_or(0), error);
  perform(machine_.start_failed(slots));
}

void NodeAgentShell::start_failed(int slot, const core::Error& error) {
  if (machine_.rank_of(slot)) return not_started({slot}, error);
  perform(machine_.spare_exited(slot, {127, 0}, false));
}

void NodeAgentShell::node_lost(int node) {
  if (const auto step = gang_.committed_step()) machine_.committed(*step);
  std::vector<int> others = machine_.slots();
  std::erase_if(others, [&](int slot) { return machine_.node_of(slot) == node; });
  const bool was_watching = machine_.state() == "watching";
  NodeEffects effects = machine_.node_lost(node, clock_.now(), gang_.standing_of(others));
  gang_.node_gone(node, was_watching && machine_.state() != "watching");
  perform(std::move(effects));
}

void NodeAgentShell::node_ready(int node) {
  perform(machine_.node_ready(node, clock_.now()));
}

void NodeAgentShell::node_added(NodeShare share) {
  perform(machine_.node_added(share, clock_.now()));
}

void NodeAgentShell::exited(int slot, ExitStatus status) {
  if (const auto rank = machine_.rank_of(slot)) return rank_exited(*rank, status);
  perform(machine_.spare_exited(slot, status, gang_.stood_by(slot)));
}

void NodeAgentShell::rank_exited(int rank, ExitStatus status) {
  if (!status.success()) {
    if (const auto step = gang_.committed_step()) machine_.committed(*step);
  }
  if (status.code == kExitFenced) note_stopped();
  const bool first = !status.success() && machine_.state() == "watching";
  const int generation = machine_.generation();
  const bool others_matter = !status.success() || machine_.is_rebuilding();
  NodeEffects effects = machine_.exited(
      rank, status, clock_.now(), others_matter ? gang_.standing_of(slots_of_others(rank)) : Standing{});
  const bool is_replaced = first && machine_.generation() > generation && machine_.is_rebuilding();
  // Before the others are asked to end: this is how they learn why.
  if (first && !is_replaced) gang_.failed(rank, status);
  perform(std::move(effects));
  if (look_ == 0 && status.success()) look_for_stopped();
}

/// Before any is told to go on.
void NodeAgentShell::note_stopped() {
  if (machine_.state() != "watching") return;
  for (int rank = 0; rank < static_cast<int>(machine_.slots().size()); ++rank) {
    const Process* const process = process_of(rank);
    if (machine_.is_running(rank) && process && process->is_stopped()) machine_.seen_stopped(rank);
  }
}

/// While all ranks run, those that miss a stopped one say so and end. A rank that has ended misses nobody.
void NodeAgentShell::look_for_stopped() {
  if (machine_.state() != "watching") return;
  look_ = clock_.arm(kLookForStopped, [this] { wake(); });
}

void NodeAgentShell::wake() {
  look_ = 0;
  for (int rank = 0; rank < static_cast<int>(machine_.slots().size()); ++rank) {
    Process* const process = process_of(rank);
    if (machine_.is_running(rank) && process && process->wake())
      gang_.woken(machine_.slots()[static_cast<std::size_t>(rank)]);
  }
  look_for_stopped();
}

void NodeAgentShell::on(const SignalRank& effect) {
  const auto slot = static_cast<std::size_t>(effect.slot);
  Process* const process = slot < processes_.size() ? processes_[slot].get() : nullptr;
  if (!process) return;
  if (effect.only_if_handled && !process->handles(effect.signal))
    return gang_.withheld(effect.slot, effect.signal);
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
  clock_.cancel(std::exchange(look_, 0));
  gang_.ended(effect);
  processes_.clear();
}

void NodeAgentShell::on(const Finish& effect) {
  clock_.cancel(std::exchange(waiting_, 0));
  gang_.finished(effect.exit_code);
}

}  // namespace troupe::actors
