#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/launch/node_admission.hpp"
#include "actors/launch/node_agent_shell.hpp"
#include "actors/world/clock.hpp"
#include "actors/world/epochs.hpp"
#include "apps/troupe/launch/local_ranks.hpp"
#include "apps/troupe/launch/nodes/journal.hpp"
#include "apps/troupe/launch/nodes/lobby.hpp"
#include "apps/troupe/launch/ports.hpp"
#include "core/list.hpp"

namespace troupe::apps {

/// The launcher of node 0, which is the only one of most jobs. The NodeAgent runs here, for the ranks of all
/// nodes; the launchers of other nodes do what it asks and report.
class Leader final : public actors::Gang {
 public:
  /// All must outlive this. `job` gets its place when all nodes are here.
  Leader(Job& job, asio::io_context& loop, actors::Clock& clock, actors::Processes& processes,
         Terminal& terminal);

  /// Begins the job; it ends by stopping the loop. The first form is for one node, the other for several.
  void start();
  void start(Lobby& lobby, const actors::JobToken& secret, Hello own, std::optional<Journal> journal);
  void signalled(int signal);
  /// After the loop: the report, and what the terminal has not taken yet.
  int conclude();

  core::Result<void> begin(const actors::StartGang& gang) override;
  core::Result<std::unique_ptr<actors::Process>> start(
      actors::ProcessPlace place, std::function<void(actors::ExitStatus)> exited) override;
  void not_started(int rank, const core::Error& error) override;
  std::unique_ptr<actors::Process> adopt(int slot, std::function<void(actors::ExitStatus)> exited) override;
  actors::Standing standing_of(const std::vector<int>& slots) override;
  std::vector<bool> waiting_of(const std::vector<int>& slots) override;
  std::vector<bool> standing_by(const std::vector<int>& slots) override;
  bool stood_by(int slot) override;
  core::Result<void> ask_to_wait(const actors::AskToWait& asked) override;
  core::Result<void> admitting(const actors::AdmitSpares& admitted) override;
  void lost_spare(const actors::SpareLost& lost) override;
  core::Result<void> replacing(const actors::ReplaceRanks& replaced) override;
  core::Result<void> forming_again(const actors::FormAgain& again) override;
  void node_gone(int node, bool ends_others) override;
  void stopped_while_forming() override;
  std::optional<std::int64_t> committed_step() override;
  void withheld(int slot, int signal) override;
  void woken(int slot) override;
  void failed(int rank, actors::ExitStatus status) override;
  void ended(const actors::EndGeneration& end) override;
  void finished(int exit_code) override;

 private:
  class RemoteProcess;
  /// Another node; node 0 has an entry without a link.
  struct Node {
    std::shared_ptr<NodeLink> link;  ///< none while it is lost
    std::string lost_because;
    struct Process {
      int generation = 0;
      std::function<void(actors::ExitStatus)> exited;
    };
    std::map<int, Process> processes;           ///< by its slots, as all that follows
    std::map<int, Exited> exits;                ///< of the last process in each
    std::map<int, actors::Membership> members;  ///< what they declare
    std::int64_t step = -1;                     ///< the last one that rank 0 said there
    std::vector<int> free_ports;
  };

  // Before the job begins.
  void came(const std::shared_ptr<NodeLink>& link, const Hello& hello);
  void take_in(int id, const std::shared_ptr<NodeLink>& link, const std::string& host);
  void take_back(const actors::NodeAdmission::Joined& joined, const std::shared_ptr<NodeLink>& link);
  void refuse(const std::shared_ptr<NodeLink>& link, const std::string& reason, bool may_try_again);
  void say_who_is_missing();
  void note_job(int generation);
  void all_are_here();
  void call_for_the_last();
  void give_up(int exit_code, const std::string& why);
  void choose_address();

  void start_agent();
  void attach(int node, const std::shared_ptr<NodeLink>& link);
  void receive(int node, NodeMessage message);
  void on(int node, const Exited& exited);
  void on(int node, const NotStarted& message);
  void on(int node, const Signalled& message);
  void on(int node, const Members& message);
  void lose(int node, const std::string& reason);
  void tell_all(const NodeMessage& message);
  void say_failure(const std::string& failure);
  void say_who_is_awaited();
  void close_links();

  const actors::NodeTable& table() const { return admission_->table(); }
  const actors::NodeTable::Member& member(int node) const;
  std::string host_of(int rank) const;
  int node_of(int slot) const { return is_alone() ? 0 : agent_->machine().node_of(slot); }
  /// Among those of its node.
  int own_slot(int slot) const;
  std::optional<actors::Membership> declared(int slot) const;
  bool is_alone() const { return job_.meeting.nodes == 1; }
  RankReport report_of(const actors::Ending& ending);
  std::vector<std::string> descriptions_of(const actors::ReplaceRanks& replaced) const;
  core::Result<void> reserve_ports();
  core::Result<Generation> next_generation(int number, const std::vector<int>& slots);
  core::Result<void> announce(const Generation& next);
  void go_on(const Generation& next, const std::vector<std::string>& lines);
  void send_generation(const Node& node, bool is_anew, const std::vector<std::string>& lines) const;
  Welcome welcome_of(int node) const;
  std::string summary() const;

  Job& job_;
  asio::io_context& loop_;
  actors::Clock& clock_;
  Terminal& terminal_;
  LocalRanks local_;
  std::optional<actors::NodeAgentShell> agent_;
  std::optional<actors::NodeAdmission> admission_;   ///< none with one node
  std::map<int, std::shared_ptr<NodeLink>> guests_;  ///< by member, before the job begins
  core::List<int, Node> nodes_;                      ///< since then
  std::optional<Journal> journal_;
  std::string own_secret_;  ///< as in JobRecord
  actors::AlarmId patience_ = 0;
  actors::AlarmId last_call_ = 0;
  std::set<int> have_signalled_;  ///< nodes whose launcher got a signal that ends the job
  std::vector<ReservedPort> ports_;
  Generation generation_;
  GenerationReport report_;
  std::vector<RankReport> replaced_;  ///< ranks of generations that were mended
  std::string last_line_;
  int exit_code_ = 1;
  bool is_over_ = false;
};

}  // namespace troupe::apps
