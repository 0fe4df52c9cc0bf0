#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/world/exit_status.hpp"
#include "core/list.hpp"

namespace troupe::actors {

/// The processes of one node.
struct NodeShare {
  int ranks = 1;
  int spares = 0;
};

struct NodeAgentConfig {
  int ranks = 1;  ///< of the whole job
  int nodes = 1;  ///< each with a launcher; node 0 is where this runs
  /// By node. Empty: ranks in equal parts, and all spares on node 0.
  std::vector<NodeShare> shares;
  /// The job goes on with at least this many nodes, and takes in those that come later; with `in_place`. 0:
  /// all.
  int fewest_nodes = 0;
  int max_restarts = 0;
  /// Where another launcher began the job: the generation after its last one, and what it used up.
  int first_generation = 0;
  int restarts_before = 0;
  /// Where the ranks that have not failed would stay, only the one that has is started again.
  bool in_place = false;
  /// The job goes on with at least this many ranks, where it need not have all; with `in_place`. 0: all.
  int fewest_ranks = 0;
  /// Processes without a rank that stand by to take the place of one that fails; with `in_place`.
  int spares = 0;
  /// These signals to the launcher go to the ranks; all others end the job.
  std::set<int> forwarded_signals = {SIGUSR1, SIGUSR2};
  std::chrono::nanoseconds term_timeout = std::chrono::seconds(15);
  std::chrono::nanoseconds kill_timeout = std::chrono::seconds(10);
  /// Ranks that end by themselves within this time after the first failure count as its consequence.
  std::chrono::nanoseconds secondary_window = std::chrono::seconds(2);
  /// After a rank that ended because another did (kExitFenced), the rank that it names has this time to end
  /// by itself before all are asked to.
  std::chrono::nanoseconds cause_window = std::chrono::milliseconds(500);
  /// A spare that was given a rank has this time to take note of it, before it is killed for another.
  std::chrono::nanoseconds spare_window = std::chrono::seconds(2);
  /// The same window where the others wait because they were asked to.
  std::chrono::nanoseconds wait_window = std::chrono::seconds(15);
  /// How often the ranks are asked whether they wait for another epoch, with `in_place`.
  std::chrono::nanoseconds look_interval = std::chrono::milliseconds(100);
  /// A gang that lived for at least this long before its first failure, or committed a step more than any
  /// before it, is restarted immediately. So is the first gang that did neither; after that come pauses of
  /// 1, 2, 4 ... times this.
  std::chrono::nanoseconds first_backoff = std::chrono::seconds(1);
  std::chrono::nanoseconds longest_backoff = std::chrono::seconds(60);
  /// This many consecutive failures without a committed step beyond the furthest end the job, or
  /// kOutsideFactor times as many, where processes were killed or nodes lost: that says little about the
  /// program, but may be for want of memory each time. For a job that never reports a step only
  /// `max_restarts` applies.
  int no_progress_limit = 3;
  static constexpr int kOutsideFactor = 4;
  /// A restart waits for so long for nodes that were lost, or that have not cleared away what was before.
  std::chrono::nanoseconds node_patience = std::chrono::minutes(10);
};

/// How one rank's process ended.
struct Ending {
  enum class Kind : std::uint8_t {
    completed,
    first,      ///< the first failure of its generation
    secondary,  ///< failed by itself soon after the first
    late,       ///< failed by itself while the gang was being stopped
    stopped,    ///< did what our signal asked, or was killed by us
    abandoned,  ///< did not end even after SIGKILL
    lost,       ///< its node was lost, and nobody knows whether it has ended
  };

  int rank = 0;
  int generation = 0;
  Kind kind = Kind::completed;
  ExitStatus status;
  std::chrono::nanoseconds at{};
  bool is_silent = false;  ///< we killed it, since all others had lost it
  bool was_asked = false;  ///< it ended after all were told to end
  int slot = 0;            ///< of its process
};
std::string_view name_of(Ending::Kind kind) noexcept;

/// What the ranks that run, but for one, have made of the generation.
struct Standing {
  bool is_formed = false;  ///< all take, or have taken, steps in it
  bool all_stay = false;   ///< all would go on in another one
};

/// What a launcher finds of the one before it.
struct Adopted {
  int generation = 0;
  std::vector<int> slots;  ///< by rank
  std::set<int> running;   ///< slots
};

/// Start the processes of all ranks for this generation.
struct StartGang {
  int generation = 0;
  std::vector<int> slots;  ///< by rank
};
/// How a generation goes on without a rank that has failed.
enum class Remedy : std::uint8_t {
  start_again,  ///< its process
  spare,        ///< a process that stood by has the rank
  fewer_ranks,  ///< nobody has it: the ranks above it have become one less
};
/// A rank has failed, or several were lost with their node, and the others stay: report it, and tell them of
/// the next generation.
struct ReplaceRanks {
  struct Loss {
    Ending ending;
    Remedy remedy{};
  };
  std::vector<Loss> losses;
  int generation = 0;      ///< the next
  std::vector<int> slots;  ///< of its processes, by rank
};
/// All ranks have lost each other though all of them run: tell them of the next generation.
struct FormAgain {
  int generation = 0;
  std::vector<int> slots;
};
/// Spares stand by for ranks that the job went on without: ask those that run to wait for another generation
/// at the end of a step at which nothing is lost.
struct AskToWait {
  int generation = 0;
};
/// All wait: tell them of the next generation, in which spares have the ranks after theirs.
struct AdmitSpares {
  int generation = 0;
  std::vector<int> slots;  ///< by rank
};
/// Starts a process without a rank.
struct StartSpare {
  int slot = 0;
};
/// A spare has ended without having been needed. It is started again if a StartSpare follows.
struct SpareLost {
  int slot = 0;
  ExitStatus status;
  bool stood_by = false;  ///< or was killed before it could, for the first time
  bool is_started_again = false;
};
struct SignalRank {
  int rank = 0;  ///< -1: a spare
  int signal = 0;
  bool group = true;             ///< false: the rank's process alone
  bool only_if_handled = false;  ///< not if it would end a process that is not prepared for it
  int slot = 0;
};
/// Replaces the deadline that was armed before; there is only one.
struct ArmDeadline {
  std::chrono::nanoseconds after{};
};
struct CancelDeadline {};
/// No process of the generation is left: report it, and remove what its ranks left behind.
struct EndGeneration {
  int generation = 0;
  std::vector<Ending> endings;  ///< in the order they were seen
  /// The index of the ending that explains the failure: the first, unless a rank was killed from outside, or
  /// lost with its node, soon after it. (A large process frees its memory before its death becomes visible,
  /// so its peers may notice and end first.) If all that ended by themselves did so because of another rank
  /// (kExitFenced), it is the one that did not: its kind is then `stopped`, however it ended.
  std::optional<std::size_t> cause;
};
struct Finish {
  int exit_code = 0;
};
using NodeEffect = std::variant<StartGang, ReplaceRanks, FormAgain, AskToWait, AdmitSpares, StartSpare,
                                SpareLost, SignalRank, ArmDeadline, CancelDeadline, EndGeneration, Finish>;
using NodeEffects = std::vector<NodeEffect>;

/// The life of a job's processes: starting -> watching -> stopping -> (waiting -> watching)* -> finished.
/// It decides; the launchers act: the one where it runs, and on other nodes those that follow it. `now` is
/// any monotonic time.
///
/// A process is known by its slot. Each node has a row of them, in the order of nodes: first those in which
/// a gang begins with ranks, then those of its spares. A rank moves to the slot of the spare that takes its
/// place, or ranks move down where there are fewer. Neither costs a restart; starting a process in a slot
/// that has become free does, unless it is one of a node that comes to a job that goes on with fewer.
///
/// NA-1: the gang starts only when no process of the previous generation is running on a node that takes
/// part; a rank is replaced only when its process has ended. NA-2: every wait, for a process that was told to
/// end or for a node, has a deadline. NA-3: Finish comes once, and nothing after it.
class NodeAgentMachine {
 public:
  explicit NodeAgentMachine(NodeAgentConfig config);

  NodeEffects start(std::chrono::nanoseconds now);
  /// Instead of start(): goes on with a generation of a launcher before this one, whose processes of other
  /// nodes run, those in `running`. What had no rank stands by.
  NodeEffects adopt(const Adopted& adopted, std::chrono::nanoseconds now);
  NodeEffects exited(int rank, ExitStatus status, std::chrono::nanoseconds now, Standing others = {});
  /// The ranks in these slots have no process, because one of them could not be started.
  NodeEffects start_failed(const std::vector<int>& slots);
  /// The process in this slot, which had no rank, has ended, or could not be started. `stood_by`: it was
  /// ready to take one.
  NodeEffects spare_exited(int slot, ExitStatus status, bool stood_by);
  /// All take steps in the generation.
  NodeEffects formed();
  /// The node does not answer any more; whatever its ranks do, they take no part in the job.
  NodeEffects node_lost(int node, std::chrono::nanoseconds now, Standing others = {});
  /// The node has cleared away what was left of the generation before, or has come back: it can start ranks.
  NodeEffects node_ready(int node, std::chrono::nanoseconds now);
  /// A node more than there were; it can start ranks.
  NodeEffects node_added(NodeShare share, std::chrono::nanoseconds now);
  /// Whether a node has come beside those whose ranks run.
  bool has_newcomers() const { return !newcomers_.empty(); }
  /// Starts its processes. Call it where all of these ranks would stay, so that they can be joined.
  NodeEffects take_in();
  /// A signal to the launcher: it ends the job, or goes to the ranks.
  NodeEffects signalled(int signal);
  NodeEffects deadline(std::chrono::nanoseconds now);
  /// These ranks have lost another one and wait for the next epoch. If a single one is left that does not
  /// wait, it is that one: it is killed at once where it was seen stopped, and after the cause window if it
  /// hangs.
  NodeEffects waited_for(const std::vector<bool>& waiting, std::chrono::nanoseconds now);
  /// The spares in these slots stand by. Where some are missing that were started together, the others do not
  /// wait for them for long.
  NodeEffects stand_by(const std::vector<int>& slots, std::chrono::nanoseconds now);
  /// By rank: whether its process was a spare and has not noticed yet that it has a rank.
  NodeEffects unnoticed_by(const std::vector<bool>& spares, std::chrono::nanoseconds now);
  /// The rank's process was stopped by a signal when a peer had lost one. Call it before that peer's exit, or
  /// before it is told that peers wait.
  void seen_stopped(int rank);
  /// The last step that the job reported as committed. Call it before the exit that ends the generation.
  void committed(std::int64_t step);

  std::string_view state() const;
  int generation() const { return generation_; }
  int restarts() const { return restarts_; }
  /// A rank was replaced, and the generation is not known to be formed.
  bool is_rebuilding() const { return is_rebuilding_; }
  bool is_running(int rank) const { return running_[rank]; }
  /// The slots of the generation's processes, by rank.
  const std::vector<int>& slots() const { return slots_.items(); }
  /// Slots of processes that run without a rank.
  const std::set<int>& spares() const { return spares_; }
  /// The rank of the process in this slot; empty for a spare.
  std::optional<int> rank_of(int slot) const;
  int node_of(int slot) const;
  /// Those of all nodes, whether or not there is a process.
  int slot_count() const { return nodes_.back().first_slot + nodes_.back().slots(); }
  /// Why the job ended as it did; empty while it is running.
  const std::string& verdict() const { return verdict_; }

 private:
  enum class State : std::uint8_t { starting, watching, stopping, waiting, finished };
  enum class Rung : std::uint8_t { none, asked, killed };

  std::optional<std::size_t> cause() const;
  std::optional<std::size_t> silent() const;
  bool cause_is_known() const;
  Ending::Kind classify(ExitStatus status, std::chrono::nanoseconds now) const;
  void launch(std::chrono::nanoseconds now, NodeEffects& effects);
  struct Node {
    NodeShare share;
    int first_slot = 0;
    bool is_present = true;
    bool is_clear = true;  ///< of the generation before

    int slots() const { return share.ranks + share.spares; }
  };

  std::vector<Remedy> remedies(const std::vector<Ending>& lost, Standing others) const;
  bool mend(const std::vector<Ending>& lost, Standing others, std::chrono::nanoseconds now,
            NodeEffects& effects);
  void replace(const std::vector<Ending>& lost, const std::vector<Remedy>& remedies,
               std::chrono::nanoseconds now, NodeEffects& effects);
  int spare_for(int slot) const;
  void begin_generation(std::chrono::nanoseconds now);
  void form_again(std::chrono::nanoseconds now, NodeEffects& effects);
  bool can_begin() const;
  bool may_lack_nodes() const { return config_.fewest_nodes < static_cast<int>(nodes_.size()); }
  int most_ranks() const;
  int world() const { return static_cast<int>(slots_.size()); }
  void settle(NodeEffects& effects);
  void admit(std::chrono::nanoseconds now, NodeEffects& effects);
  void start_spare(int slot, NodeEffects& effects);
  void end_when_all_have(NodeEffects& effects);
  void stop(int signal, NodeEffects& effects);
  void kill_all(NodeEffects& effects);
  void signal_all(int signal, bool group, NodeEffects& effects) const;
  void gang_ended(NodeEffects& effects);
  void finish(int exit_code, std::string verdict, NodeEffects& effects);
  void begin_when_ready(std::chrono::nanoseconds now, NodeEffects& effects);
  std::vector<int> absent_nodes() const;
  std::optional<int> code_that_forbids_restart() const;
  void begin_again(NodeEffects& effects);
  void count_failure();
  bool makes_no_progress() const;
  bool lived_for_a_while() const;

  NodeAgentConfig config_;
  State state_ = State::starting;
  Rung rung_ = Rung::none;
  int generation_ = 0;
  int restarts_ = 0;
  core::List<int, bool> running_;   ///< by rank
  core::List<int, int> slots_;      ///< by rank
  std::set<int> spares_;            ///< slots of processes that run without a rank
  std::set<int> free_slots_;        ///< of ranks that were replaced by spares or by nobody
  std::set<int> barred_;            ///< whose spare ended before it stood by
  std::set<int> killed_early_;      ///< whose spare was killed before it stood by
  bool is_dismissed_ = false;       ///< the spares were told to end
  std::optional<int> silent_rank_;  ///< we have killed it
  std::optional<std::chrono::nanoseconds> silent_since_;
  std::optional<std::chrono::nanoseconds> parted_since_;  ///< all have lost each other
  int alive_ = 0;
  int asked_with_ = 0;   ///< the signal that began the stop
  int stop_signal_ = 0;  ///< the signal that ends the job
  bool start_failed_ = false;
  core::List<int, Node> nodes_;
  std::set<int> newcomers_;  ///< nodes whose processes are to be started beside the others
  std::optional<std::chrono::nanoseconds> standing_since_;  ///< some that could join
  bool waits_for_nodes_ = false;                            ///< and not for the end of a pause
  std::chrono::nanoseconds launched_{};
  std::vector<Ending> endings_;
  bool is_rebuilding_ = false;
  bool is_counted_ = false;  ///< the failure by count_failure()
  bool has_asked_ = false;   ///< the ranks of this generation to wait for the next
  bool is_paid_ = false;     ///< a restart was counted for what is being rebuilt
  std::set<int> seen_stopped_;
  std::optional<std::int64_t> step_;
  std::optional<std::int64_t> furthest_step_;  ///< of those committed at failures so far
  int failures_at_step_ = 0;
  int own_failures_at_step_ = 0;  ///< of these: not by a signal from outside
  int quick_failures_ = 0;        ///< consecutive ones: soon, and without another step
  std::string verdict_;
};

}  // namespace troupe::actors
