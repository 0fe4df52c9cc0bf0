#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/list.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The first message to the launcher of node 0 from a launcher that wants to become a node of the job. Slots
/// are its own, from 0 on.
struct LauncherHello {
  std::string version;
  std::string host;
  std::string instance;      ///< unique for each launcher's process
  std::string job;           ///< in which it was a node before it lost the connection; or empty
  int node = -1;             ///< -1: any
  bool is_numbered = false;  ///< was started as this node; otherwise it got the number from the job
  std::vector<int> running;  ///< slots of processes that it has kept of that job
  std::vector<int> started;  ///< the generations in which these were started
  std::vector<int> free_ports;
  int ranks = 1;
  int fewest_ranks = 1;
  int spares = 0;
  std::map<std::string, std::string> settings;  ///< by flag
  std::vector<std::string> program;             ///< and its arguments
};

/// The nodes of a job, each with its launcher. Node 0 is the one whose launcher keeps this.
class NodeTable {
 public:
  struct Member {
    int id = 0;  ///< by which remove() knows it
    LauncherHello hello;
    std::string address;
    int node = 0;
    int first_slot = 0;
  };

  /// With `fewest` below `nodes` their numbers follow from the order in which they come, and more may be
  /// added while the job runs.
  NodeTable(int nodes, int fewest, LauncherHello own, std::string address);

  /// Takes a launcher in; returns its id. An Error says why it cannot be one of the nodes.
  core::Result<int> add(LauncherHello hello, std::string address);
  void remove(int id);

  int size() const { return static_cast<int>(members_.size()); }
  bool is_complete() const { return size() == nodes_; }
  bool is_enough() const { return size() >= fewest_; }
  bool may_change() const { return fewest_ < nodes_; }
  /// When there are enough: gives nodes without a number the lowest free ones, in the order in which they
  /// came, and counts slots by node.
  void assign();
  /// In the order of nodes, after assign().
  const core::List<int, Member>& members() const { return members_; }
  /// Ranks of all nodes together.
  int world() const;
  /// Ranks of the smallest job that may go on: as many nodes as may be missing are missing, and each of the
  /// others runs the fewest ranks that it may.
  int fewest_ranks() const;

  /// A launcher that takes the place of a lost one, after assign().
  core::Result<void> check_return(int node, const LauncherHello& hello) const;
  void replace(int node, LauncherHello hello, std::string address);

  /// "n1 (node 0), n2"
  std::string present() const;
  /// "waiting for 1 of 2 nodes; here is n1 (node 0)"
  std::string waiting() const;
  /// The settings in which other launchers differ from this one, a line each.
  std::vector<std::string> differences() const;

 private:
  core::Result<void> check(const LauncherHello& hello, const std::string& address) const;

  int nodes_;
  int fewest_;
  core::List<int, Member> members_;
  int next_id_ = 1;
};

/// "n2 (node 1)"
std::string name_of(const NodeTable::Member& member);

}  // namespace troupe::actors
