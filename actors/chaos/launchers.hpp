#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/chaos/links.hpp"
#include "actors/chaos/rank.hpp"
#include "actors/chaos/world.hpp"
#include "actors/launch/job_record.hpp"
#include "actors/launch/node_admission.hpp"
#include "actors/launch/node_agent_shell.hpp"
#include "actors/launch/standing.hpp"
#include "core/list.hpp"

namespace troupe::actors {

// The launchers of a simulated job. What decides is the product's: NodeAgentShell with its machine,
// NodeAdmission with its table of nodes and its record for the next launcher, and actors/launch/standing. How
// launchers find, tell and lose each other is a model of apps/troupe/launch/nodes (Leader, Follower),
// function by function and with its times, since those are made of sockets, files and terminals. Not
// modelled: what is said to people, ports, tokens, and different commands on different nodes.

class ChaosLeader;
class ChaosFollower;
class ChaosJob;

/// A connection between the launchers of two hosts.
struct LauncherLink {
  std::weak_ptr<ChaosLeader> leader;
  std::weak_ptr<ChaosFollower> follower;
  int host = 0;  ///< the follower's
  bool is_open_at_leader = true;
  bool is_open_at_follower = true;
};

/// A process of the launcher's own host; its end kills it.
class ChaosProcess final : public Process {
 public:
  explicit ChaosProcess(std::shared_ptr<ChaosRank> rank) : rank_(std::move(rank)) {}
  ~ChaosProcess() override;
  ChaosProcess(const ChaosProcess&) = delete;
  ChaosProcess& operator=(const ChaosProcess&) = delete;

  std::int64_t pid() const override { return rank_->id(); }
  void signal(int signal) override { rank_->signal(signal); }
  bool handles(int) const override { return true; }
  void signal_group(int signal) override { rank_->signal(signal); }
  bool is_stopped() const override { return rank_->is_stopped(); }
  bool wake() override;

 private:
  std::shared_ptr<ChaosRank> rank_;
  bool was_stopped_ = false;
};

/// Plays the part of Follower in apps/troupe/launch/nodes.
class ChaosFollower : public std::enable_shared_from_this<ChaosFollower> {
 public:
  ChaosFollower(ChaosJob& job, int host);

  void start();
  /// The launcher dies, and its processes with it.
  void die(bool with_host);
  void take_apart() { processes_.clear(); }
  bool is_alive() const { return state_ != State::over; }
  HostClock& clock() { return clock_; }
  int host() const { return host_; }

  void met(const std::shared_ptr<LauncherLink>& link);
  const std::shared_ptr<LauncherLink>& link() const { return link_; }
  void lost(const LauncherLink* link);
  void refused(bool may_try_again);
  void welcomed(int node, int first_slot);
  void begin(const NextEpoch& next, bool is_anew);
  void start_process(int slot, int rank);
  void wait_for_more(core::Epoch epoch);
  void signal(int generation, int slot, int signal, bool group);
  void failed(core::Epoch epoch);
  void ended(core::Epoch epoch);
  void job_is_over();

 private:
  enum class State : std::uint8_t { looking, following, cut_off, over };
  struct OwnProcess {
    std::unique_ptr<ChaosProcess> process;
    int generation = 0;
    bool is_running = false;
    std::optional<Membership> told;
  };

  void look();
  void not_found(bool is_refused);
  void tell(const std::function<void(ChaosLeader&, int host)>& what);
  void tell_members();
  void look_at_members();
  void exited(int slot, ExitStatus status);
  void stop_ranks();
  void all_have_ended();
  void end();
  bool has_ranks() const;
  bool has_job() const { return !hello_.job.empty(); }
  void close();
  HostFiles& files() { return *files_; }

  ChaosJob& job_;
  ChaosWorld& world_;
  int host_;
  HostClock clock_;
  State state_ = State::looking;
  std::shared_ptr<LauncherLink> link_;
  int watch_ = 0;
  LauncherHello hello_;
  int first_slot_ = 0;
  std::optional<NextEpoch> next_;
  std::shared_ptr<HostFiles> files_ = std::make_shared<HostFiles>();
  core::List<int, OwnProcess> processes_;
  std::vector<std::function<void(ChaosLeader&, int host)>> untold_;  ///< ends since it introduced itself
  std::int64_t told_step_ = -1;
  AlarmId again_ = 0;
  AlarmId kill_ = 0;
  AlarmId look_ = 0;
  std::chrono::nanoseconds give_up_at_{};
};

/// Plays the part of Leader in apps/troupe/launch/nodes.
class ChaosLeader final : public Gang, public std::enable_shared_from_this<ChaosLeader> {
 public:
  explicit ChaosLeader(ChaosJob& job);

  void start();
  void die(bool with_host);
  void take_apart();
  bool is_alive() const { return is_alive_; }
  HostClock& clock() { return clock_; }
  const std::optional<NodeAgentShell>& agent() const { return agent_; }
  bool has_asked() const { return has_asked_; }

  void reset_connections(int host);
  void hello(const std::shared_ptr<LauncherLink>& link, const LauncherHello& hello);
  void lost(const LauncherLink* link);
  void exited(int host, int generation, int slot, ExitStatus status);
  void declared(int host, const std::map<int, Membership>& members, std::int64_t step);
  void cleared(int host, core::Epoch epoch);
  /// What comes while it writes its journal waits.
  void act(std::function<void()> what);

  core::Result<void> begin(const StartGang& gang) override;
  core::Result<std::unique_ptr<Process>> start(ProcessPlace place,
                                               std::function<void(ExitStatus)> exited) override;
  void not_started(int, const core::Error&) override {}
  std::unique_ptr<Process> adopt(int slot, std::function<void(ExitStatus)> exited) override;
  Standing standing_of(const std::vector<int>& slots) override;
  std::vector<bool> waiting_of(const std::vector<int>& slots) override;
  std::vector<bool> standing_by(const std::vector<int>& slots) override;
  bool stood_by(int slot) override { return member_in(slot).has_value(); }
  core::Result<void> ask_to_wait(const AskToWait& asked) override;
  core::Result<void> admitting(const AdmitSpares& admitted) override;
  core::Result<void> replacing(const ReplaceRanks& replaced) override;
  core::Result<void> forming_again(const FormAgain& again) override;
  void node_gone(int node, bool ends_others) override;
  void stopped_while_forming() override {}
  std::optional<std::int64_t> committed_step() override;
  void withheld(int, int) override {}
  void woken(int) override {}
  void failed(int rank, ExitStatus status) override;
  void ended(const EndGeneration& end) override;
  void finished(int exit_code) override;

 private:
  class RemoteProcess;
  struct Node {
    std::shared_ptr<LauncherLink> link;
    int watch = 0;
    int host = 0;
    struct RunningProcess {
      int generation = 0;
      std::function<void(ExitStatus)> exited;
    };
    std::map<int, RunningProcess> processes;  ///< by own slot
    std::map<int, Membership> members;        ///< by own slot
    std::int64_t step = -1;
  };

  struct Guest {
    std::shared_ptr<LauncherLink> link;
    int watch = 0;
  };

  int watch(const std::shared_ptr<LauncherLink>& link);
  void close(const std::shared_ptr<LauncherLink>& link);
  void take_back(const NodeAdmission::Joined& joined, const std::shared_ptr<LauncherLink>& link);
  void call_for_the_last();
  void all_are_here();
  void attach(int node, const std::shared_ptr<LauncherLink>& link);
  void refuse(const std::shared_ptr<LauncherLink>& link, bool may_try_again);
  void lose(int node);
  void give_up(int exit_code);
  int node_with(const LauncherLink* link) const;
  int node_of(int slot) const { return agent_->machine().node_of(slot); }
  int first_slot(int node) const { return member(node).first_slot; }
  const NodeTable::Member& member(int node) const;
  bool check_numbers();
  std::optional<Membership> member_in(int slot);
  NextEpoch next_epoch(int generation, const std::vector<int>& slots);
  void announce(const NextEpoch& next);
  void go_on(const NextEpoch& next);
  void send_generation(const Node& node, bool is_anew);
  void note_job();
  void when_noted(std::function<void()> what);
  void tell(const Node& node, const std::function<void(ChaosFollower&)>& what);
  void tell_all(const std::function<void(ChaosFollower&)>& what);
  void blame(const char* invariant, const Ending& ending, const char* how);

  ChaosJob& job_;
  ChaosWorld& world_;
  HostClock clock_;
  bool is_alive_ = true;
  bool is_over_ = false;
  bool has_asked_ = false;
  bool is_adopting_ = false;
  bool is_writing_ = false;
  int writes_ = 0;
  std::map<int, int> own_;  ///< the process that was started last, by slot
  std::deque<std::function<void()>> waiting_;
  std::deque<std::function<void()>> outgoing_;
  std::optional<NodeAdmission> admission_;
  std::map<int, Guest> guests_;  ///< by number in the table
  core::List<int, Node> nodes_;
  std::optional<NodeAgentShell> agent_;
  std::shared_ptr<HostFiles> files_ = std::make_shared<HostFiles>();
  NextEpoch next_;
  AlarmId patience_ = 0;
  AlarmId last_call_ = 0;
};

/// A job's launchers, and what is on disk for the next one.
class ChaosJob {
 public:
  explicit ChaosJob(ChaosWorld& world);
  /// Launchers, processes and what waits for them name each other.
  ~ChaosJob();
  ChaosJob(const ChaosJob&) = delete;
  ChaosJob& operator=(const ChaosJob&) = delete;

  void start();
  /// The launcher of this host dies, and its processes; alone or with the host.
  void kill_launcher(int host, bool with_host);
  void start_launcher(int host);
  /// The host is back, and answers that it knows nothing of the connections that others still have to it.
  void reset_connections(int host);
  ChaosPhase phase() const;
  bool is_over() const { return exit_code.has_value(); }
  HostClock* clock_of(int host);
  std::shared_ptr<ChaosRank> start_rank(ChaosRank::Start start);
  /// The process that was started last in a slot of the job; the last one that has ended there by a time.
  std::shared_ptr<ChaosRank> process_in(int slot) const;
  std::shared_ptr<ChaosRank> ended_in(int slot, std::chrono::nanoseconds before) const;
  std::shared_ptr<ChaosRank> first_rank() const;
  /// How a launcher that is started there introduces itself.
  LauncherHello hello_of(int host);
  /// A process that nobody watches any more.
  void leak(std::unique_ptr<ChaosProcess> process) { leaked_.push_back(std::move(process)); }

  ChaosWorld& world;
  std::shared_ptr<ChaosLeader> leader;
  core::List<int, std::shared_ptr<ChaosFollower>> followers;  ///< by host
  std::vector<std::shared_ptr<ChaosLeader>> leaders;          ///< all that there were: events may name them
  std::vector<std::shared_ptr<ChaosFollower>> all_followers;
  std::optional<JobRecord> journal;
  std::optional<int> exit_code;
  std::string verdict;
  bool has_formed = false;  ///< some epoch of the job
  bool is_lenient = false;  ///< a launcher's time was disturbed: it may take anybody for lost
  int generations = 0;
  std::uint16_t next_room = 1;
  int launchers = 0;  ///< that were started

  static constexpr const char* kName = "job";
  // That of Meeting, but less, which only ends hopeless jobs earlier.
  static constexpr std::chrono::seconds kPatience{120};

 private:
  std::vector<std::unique_ptr<ChaosProcess>> leaked_;
};

}  // namespace troupe::actors
