#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/world/clock.hpp"
#include "actors/world/epochs.hpp"
#include "actors/world/job_guard.hpp"
#include "actors/world/process.hpp"
#include "apps/troupe/launch/local_ranks.hpp"
#include "apps/troupe/launch/nodes/link.hpp"
#include "apps/troupe/launch/nodes/secret.hpp"
#include "apps/troupe/launch/ports.hpp"
#include "core/list.hpp"

namespace troupe::apps {

/// The launcher of a node other than 0. It looks for the launcher of node 0 until that one is there, starts
/// and stops ranks as it says, and reports. When it loses it, it stops its ranks; if the job may be
/// restarted, it looks for it again, and otherwise ends.
class Follower {
 public:
  /// All must outlive this. `job` gets its name and place from the launcher of node 0.
  Follower(Job& job, asio::io_context& loop, actors::Clock& clock, actors::Processes& processes,
           Terminal& terminal, Hello hello, SecretSource secret);

  /// It ends by stopping the loop.
  void start();
  void signalled(int signal);
  int conclude();

 private:
  enum class State : unsigned char { looking, following, cut_off, over };

  // Finding the launcher of node 0.
  void look();
  void try_next(std::shared_ptr<std::vector<asio::ip::tcp::endpoint>> places, std::size_t at);
  void introduce();
  void met(asio::ip::tcp::socket socket, const actors::JobToken& secret);
  void not_found(const std::string& why, bool is_refused = false);
  void look_again_soon();

  void receive(NodeMessage message);
  void on(const Greeting& message);
  void on(const Refused& message);
  void on(const Welcome& message);
  void on(const Begin& message);
  void on(const Start& message);
  void on(const WaitForMore& message);
  void on(const Signal& message);
  void on(const Failed& message);
  void on(const Ended& message);
  void on(const JobOver& message);
  void on(const Notice& message) { terminal_.say(message.line); }
  template <class Other>
  void on(const Other&) {}

  void exited(int slot, actors::ExitStatus status);
  void offer_port();
  void tell_members();
  void look_at_members();
  void lost(const std::string& reason);
  void signal_ranks(int signal);
  void stop_ranks(const std::string& failure);
  void all_have_ended();
  void end(int exit_code, const std::string& line);
  std::string leader() const;

  Job& job_;
  asio::io_context& loop_;
  actors::Clock& clock_;
  Terminal& terminal_;
  LocalRanks local_;
  Hello hello_;
  SecretSource source_;
  std::optional<actors::JobToken> secret_;
  std::optional<actors::JobGuard> guard_;
  std::shared_ptr<NodeLink> link_;
  std::string host_of_leader_;
  asio::ip::tcp::socket trying_;
  actors::AlarmId again_ = 0;
  actors::AlarmId kill_ = 0;
  std::chrono::nanoseconds give_up_at_{};
  std::chrono::nanoseconds say_at_{};  ///< when people hear next why it is not found
  State state_ = State::looking;
  struct Process {
    std::unique_ptr<actors::Process> process;  ///< null: none was started
    int generation = 0;                        ///< in which it was
    bool is_running = false;
    actors::Membership told{};  ///< to the launcher of node 0
  };
  bool has_ranks() const;

  Generation generation_{.number = -1, .master_addr = {}, .control_host = {}, .fence_token = {}, .seats = {}};
  core::List<int, Process> processes_;     ///< by slot
  std::map<int, ReservedPort> ports_;      ///< where rank 0 may listen
  std::optional<ReservedPort> last_port_;  ///< where it does
  /// Since this launcher introduced itself with the processes that run, until it is welcome.
  std::vector<Exited> untold_;
  std::int64_t told_step_ = -1;
  actors::AlarmId look_ = 0;
  int stop_signal_ = 0;
  int exit_code_ = 1;
  std::string last_line_;
  std::string report_;
};

}  // namespace troupe::apps
