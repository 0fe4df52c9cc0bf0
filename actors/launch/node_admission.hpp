#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/launch/job_record.hpp"
#include "actors/launch/node_agent.hpp"
#include "actors/launch/node_table.hpp"
#include "core/list.hpp"

namespace troupe::actors {

/// Which launchers are a job's nodes, and which number each has: what the launcher of node 0 decides when
/// others come to it, before the job begins and later, and what follows from that for the job. `now` is any
/// monotonic time.
class NodeAdmission {
 public:
  struct Terms {
    std::string job;  ///< its name
    int nodes = 1;
    int fewest_nodes = 1;  ///< with which it begins and goes on
    /// The loss of a launcher is noticed within this time.
    std::chrono::nanoseconds loss_noticed{};
  };

  /// It does not become one of the nodes.
  struct Refusal {
    std::string reason;
    bool may_try_again = false;
  };
  /// It is one of those with which the job will begin.
  struct Guest {
    int id = 0;
  };
  /// It is this node of the job that runs: one that was lost, or one in its place; or one more.
  struct Joined {
    int node = 0;
    bool is_new = false;
  };
  /// It is this node already, over another connection. Close that, tell lose(), and ask again.
  struct Reconnected {
    int node = 0;
  };
  using Answer = std::variant<Refusal, Guest, Joined, Reconnected>;

  /// `own`: the launcher of node 0 itself. `before`: what the launcher before it has left.
  NodeAdmission(Terms terms, LauncherHello own, std::string address, std::optional<JobRecord> before);

  /// Somebody introduces itself.
  Answer admit(LauncherHello hello, const std::string& address, std::chrono::nanoseconds now);
  /// A guest has left.
  void leave(int id) { table_.remove(id); }
  /// Whether nobody else is awaited; until then those that may come have some time, if the table says that
  /// there are enough.
  bool are_all_here() const;
  /// The job begins with those that are here, which have their numbers from now on.
  void begin();
  /// The connection of this node has ended.
  void lose(int node) { is_present_[node] = false; }

  const NodeTable& table() const { return table_; }
  const std::optional<JobRecord>& before() const { return before_; }

  // After begin():

  /// Whether ranks that could stay may have something to stay for.
  bool can_mend(int max_restarts) const;
  /// Adds to the config what follows from the nodes, and from what the launcher before this one has left.
  NodeAgentConfig agent_config(NodeAgentConfig config) const;
  /// What goes on of the job of the launcher before this one; nothing if the nodes are not the same, or one
  /// other than node 0, whose processes ended with their launcher, has kept none.
  std::optional<Adopted> adopted() const;
  /// Adds to the record what the next launcher must know of this generation.
  JobRecord record(JobRecord record, int generation, const NodeAgentMachine& agent) const;

 private:
  Answer take_in(LauncherHello hello, const std::string& address, std::chrono::nanoseconds now);
  Answer take_back(LauncherHello hello, const std::string& address, std::chrono::nanoseconds now);
  int place_for(const LauncherHello& hello) const;
  bool may_be_free_soon(const std::string& instance, std::chrono::nanoseconds now);
  bool is_here(int node) const { return is_present_[node]; }
  const NodeTable::Member& member(int node) const { return table_.members()[node]; }

  Terms terms_;
  NodeTable table_;
  std::optional<JobRecord> before_;
  bool has_begun_ = false;
  core::List<int, bool> is_present_;  ///< by node, once the job has begun
  /// How long a launcher has been waiting for a place, as far as it was seen to: a pause of this process is
  /// not a wait.
  struct Wait {
    std::chrono::nanoseconds last_seen{}, seen{};
  };
  std::map<std::string, Wait> too_many_;  ///< by instance
};

}  // namespace troupe::actors
