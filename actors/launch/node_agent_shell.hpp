#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/launch/node_agent.hpp"
#include "actors/world/clock.hpp"
#include "actors/world/process.hpp"
#include "core/list.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Which process of the job one is, see NodeAgentMachine.
struct ProcessPlace {
  int slot = 0;
  std::optional<int> rank;  ///< none: a spare
};

/// What a NodeAgentShell starts and reports to. All calls come on the thread of the shell's inputs and must
/// not call it back. Ranks may be on other nodes, whose launchers do what this one asks.
class Gang {
 public:
  virtual ~Gang() = default;

  /// Before the first process of a generation. On an Error none of them can be started.
  virtual core::Result<void> begin(const StartGang& gang) = 0;
  /// Starts this process of the generation that began, with a rank unless it is a spare. Calls `exited` from
  /// the event loop, once, when it has ended and all that it wrote has been read; not after the Process is
  /// destroyed.
  virtual core::Result<std::unique_ptr<Process>> start(ProcessPlace place,
                                                       std::function<void(ExitStatus)> exited) = 0;
  virtual void not_started(int rank, const core::Error& error) = 0;
  /// A process of another node that the launcher before this one has started.
  virtual std::unique_ptr<Process> adopt(int slot, std::function<void(ExitStatus)> exited) {
    static_cast<void>(slot);
    static_cast<void>(exited);
    return nullptr;
  }

  /// What the processes in these slots have made of the generation.
  virtual Standing standing_of(const std::vector<int>& slots) {
    static_cast<void>(slots);
    return {};
  }
  /// By place in `slots`: whether it has lost another rank and waits for the next epoch. Asked often; may be
  /// empty.
  virtual std::vector<bool> waiting_of(const std::vector<int>& slots) {
    static_cast<void>(slots);
    return {};
  }
  /// By place in `slots`: whether the process has no rank, as far as it knows. Asked while a rank is
  /// replaced.
  virtual std::vector<bool> standing_by(const std::vector<int>& slots) {
    static_cast<void>(slots);
    return {};
  }
  /// Whether the process in this slot was ready to take a rank.
  virtual bool stood_by(int slot) {
    static_cast<void>(slot);
    return false;
  }
  /// Asks the ranks of this generation to wait for another where the state is saved.
  virtual core::Result<void> ask_to_wait(const AskToWait& asked) {
    static_cast<void>(asked);
    return {};
  }
  /// Tells all of the generation in which these spares have ranks.
  virtual core::Result<void> admitting(const AdmitSpares& admitted) {
    static_cast<void>(admitted);
    return {};
  }
  virtual void lost_spare(const SpareLost& lost) { static_cast<void>(lost); }
  /// Before a rank is started again, while the others stay: reports its end, and tells the others.
  virtual core::Result<void> replacing(const ReplaceRanks& replaced) {
    static_cast<void>(replaced);
    return {};
  }
  /// Tells all of the next generation.
  virtual core::Result<void> forming_again(const FormAgain& again) {
    static_cast<void>(again);
    return {};
  }

  /// The node was lost, and the ranks of others are asked to end, if they are, after this.
  virtual void node_gone(int node, bool ends_others) {
    static_cast<void>(node);
    static_cast<void>(ends_others);
  }

  /// The job is stopped while its ranks form an epoch. Those that stayed could not leave at the end of a
  /// step.
  virtual void stopped_while_forming() {}

  /// The last step that the job has committed, if it reports one. Asked when a rank has failed.
  virtual std::optional<std::int64_t> committed_step() = 0;
  /// A signal of the launcher's that did not go to the rank in this slot, which it would have ended.
  virtual void withheld(int slot, int signal) = 0;
  /// The rank was stopped while others had ended well, so that the job only waited for it: it goes on.
  virtual void woken(int slot) = 0;
  /// The generation's first failure, reported before the other ranks are asked to end.
  virtual void failed(int rank, ExitStatus status) = 0;
  /// No process of the generation is left: clears away what its ranks have left behind.
  virtual void ended(const EndGeneration& end) = 0;
  /// NA-3: called once, and nothing after it.
  virtual void finished(int exit_code) = 0;
};

/// The shell of the NodeAgent: performs what the machine decides, and tells it what happens. It has one
/// thread, on which its inputs, the clock's alarms and the processes' handlers run.
class NodeAgentShell {
 public:
  /// The clock and the gang must outlive this.
  NodeAgentShell(const NodeAgentConfig& config, Clock& clock, Gang& gang);
  /// Processes that are still running are killed.
  ~NodeAgentShell();
  NodeAgentShell(const NodeAgentShell&) = delete;
  NodeAgentShell& operator=(const NodeAgentShell&) = delete;

  /// Once, one of them.
  void start();
  void adopt(const Adopted& adopted);
  /// A signal to the launcher.
  void signalled(int signal);
  /// What other nodes say: the process in this slot could not be started; the node is lost; it can start
  /// ranks; it is one more.
  void start_failed(int slot, const core::Error& error);
  void node_lost(int node);
  void node_ready(int node);
  void node_added(NodeShare share);

  const NodeAgentMachine& machine() const { return machine_; }

 private:
  void perform(NodeEffects effects);
  void on(const StartGang& effect);
  void on(const ReplaceRanks& effect);
  void on(const FormAgain& effect);
  void on(const AskToWait& effect);
  void on(const AdmitSpares& effect);
  void on(const StartSpare& effect);
  void on(const SpareLost& effect);
  void on(const SignalRank& effect);
  void on(const ArmDeadline& effect);
  void on(const CancelDeadline& effect);
  void on(const EndGeneration& effect);
  void on(const Finish& effect);
  core::Result<void> start_process(ProcessPlace place);
  void exited(int slot, ExitStatus status);
  void rank_exited(int rank, ExitStatus status);
  void not_started(const std::vector<int>& slots, const core::Error& error);
  std::vector<int> slots_of_others(int rank) const;
  /// Null if it has none.
  Process* process_of(int rank) const;
  void note_stopped();
  void look_for_stopped();
  void wake();
  void look_for_waiting();
  void look_at_spares();

  NodeAgentMachine machine_;
  std::chrono::nanoseconds look_interval_;  ///< 0: never
  Clock& clock_;
  Gang& gang_;
  core::List<int, std::unique_ptr<Process>> processes_;  ///< by slot; null for one that was not started
  std::deque<NodeEffect> queue_;
  bool performing_ = false;
  AlarmId deadline_ = 0;
  AlarmId look_ = 0;     ///< at ranks that others do not wait for any more
  AlarmId waiting_ = 0;  ///< for ranks that wait for the next epoch
};

}  // namespace troupe::actors
