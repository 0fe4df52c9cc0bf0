#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "actors/world/log.hpp"
#include "apps/troupe/launch/nodes/meeting.hpp"
#include "apps/troupe/launch/options.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Which of the job's processes this node has: those in the slots from `first_slot` on (NodeAgentMachine).
struct NodePlace {
  int node = 0;
  int nodes = 1;
  int first_slot = 0;
  int world = 1;    ///< ranks with which the job begins
  int resumed = 0;  ///< the generation in which a launcher went on with the job of one before it
};

/// What the options mean on this machine, checked.
struct Job {
  LaunchOptions options;
  Meeting meeting;
  NodePlace place;       ///< with several nodes, known when all have come
  std::string id;        ///< TROUPE_JOB_ID: unique, of letters, digits, '-' and '_'
  std::string run_id;    ///< as the operator named it
  std::string token;     ///< TROUPE_JOB_TOKEN, 64 hexadecimal digits: what ranks prove to each other
  int ranks = 1;         ///< of this node
  int fewest_ranks = 1;  ///< of this node, with which the job goes on if some are lost
  /// Ranks that can stay are asked to when another one has failed. With several nodes, node 0's option
  /// counts.
  bool keeps_processes = false;
  /// Another launcher of node 0 may go on with the job.
  bool has_journal = false;
  std::string program;                 ///< a path
  std::vector<std::string> arguments;  ///< argv
  std::string master_addr;             ///< without brackets
  int master_port = 0;                 ///< 0: a free one for each generation
  StreamChoice redirects;
  StreamChoice tee;
  std::vector<std::string> stdout_filters;  ///< lines that contain one go to filtered_stdout.log too
  std::vector<std::string> stderr_filters;
  std::set<int> shown_ranks;  ///< local ranks that reach the console
  std::set<int> stop_signals;
  std::filesystem::path directory;  ///< of this run; exists
  bool directory_is_temporary = false;
  actors::LogOptions log;  ///< of the launcher
};

/// Checks everything that can be wrong before the first process starts, and with one node names the job and
/// makes the run's directory. Messages say what to do.
core::Result<Job> prepare_job(LaunchOptions options);

/// Gives the job its name, and with it its directory. With several nodes the launcher of node 0 chooses the
/// name; its `directory_is_temporary` and place are set before.
core::Result<void> name_job(Job& job, std::string id);
/// A new name for it.
std::string unique_id(const Job& job);
/// This launcher's name among those of the job, including those that it replaces.
std::string launcher_name(const Job& job);
/// NAME=value in the environment of all processes that this node's launcher has started.
std::string mark_of(const Job& job);

/// The path of a program as a shell finds it. Errc::not_found, or Errc::invalid_argument if it is not
/// executable.
core::Result<std::string> find_program(const std::string& name);

}  // namespace troupe::apps
