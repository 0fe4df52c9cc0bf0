#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/launch/node_table.hpp"
#include "core/result.hpp"

namespace troupe::apps {

// What the launchers of a job's nodes say to each other: JSON in the frames of SealedFrames. Slots are those
// of the node, from 0 on, and ranks the job's. `generation` is the one in which a process was started, or the
// one that is meant, so that what is late is told apart.

// From a launcher to that of node 0.

/// The first frame of a launcher that wants to be one of the nodes.
using Hello = actors::LauncherHello;
struct NotStarted {
  int generation = 0;
  int slot = 0;
  std::string error;
};
struct Exited {
  int generation = 0;
  int slot = 0;
  int code = 0;
  int signal = 0;
  std::int64_t pid = 0;
  std::string error;    ///< from its error file
  std::string meaning;  ///< likely_meaning()
  std::vector<std::string> last_lines;
};
/// What processes have declared (actors::Membership), where that has changed.
struct Members {
  std::vector<int> slots;
  std::vector<std::uint64_t> epochs;
  std::vector<int> states;
  std::int64_t step = -1;  ///< the last one committed, if rank 0 is here and says so
};
/// Rank 0 of a later generation may listen there, as at those that Hello names.
struct FreePort {
  int number = 0;
};
/// No process of the generation is left on the node.
struct Cleared {
  int generation = 0;
};
/// The launcher got this signal.
struct Signalled {
  int signal = 0;
};

// From the launcher of node 0 to the others.

/// The first frame to somebody who has introduced himself: proves that this side knows the secret.
struct Greeting {
  std::string host;
};
struct Refused {
  std::string reason;
  bool may_try_again = false;
};
/// All nodes are here, or enough of them.
struct Welcome {
  std::string job;
  int node = 0;
  int nodes = 1;
  int first_slot = 0;
  int world = 1;
  bool keeps_processes = false;
  bool has_journal = false;
  int max_restarts = 0;
  double term_timeout_seconds = 0;
  std::string line;  ///< for people
};
struct Begin {
  int generation = 0;
  bool is_anew = true;  ///< with processes that are to be started; or with those that run
  std::string master_addr;
  int master_port = 0;
  std::string control_host;
  int control_port = 0;
  std::string fence_token;
  std::vector<int> slots;  ///< the job's, by rank
  std::vector<int> nodes;  ///< where they are
  std::vector<std::string> lines;
};
/// A process of the generation that was begun.
struct Start {
  int slot = 0;
  int rank = -1;  ///< -1: none
};
/// The ranks are to wait for another generation at the end of a step.
struct WaitForMore {
  int generation = 0;
};
struct Signal {
  int generation = 0;
  int slot = 0;
  int signal = 0;
  /// false: the process alone, and only if it handles the signal. SIGCONT alone: see Process::wake().
  bool group = true;
};
/// The first failure of the generation, wherever it was.
struct Failed {
  int generation = 0;
  std::string text;
  std::string line;
};
/// Clear away; answered by Cleared.
struct Ended {
  int generation = 0;
  std::vector<std::string> lines;
};
/// The job has ended.
struct JobOver {
  int exit_code = 0;
  std::string line;
  std::string report;  ///< the text of job_report.json
};
/// For people, while nodes are missing.
struct Notice {
  std::string line;
};

using NodeMessage =
    std::variant<Hello, NotStarted, Exited, Members, FreePort, Cleared, Signalled, Greeting, Refused, Welcome,
                 Begin, Start, WaitForMore, Signal, Failed, Ended, JobOver, Notice>;

std::string to_text(const NodeMessage& message);
/// Errc::corrupt says what was found instead.
core::Result<NodeMessage> message_from_text(std::string_view text);

}  // namespace troupe::apps
