#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "actors/launch/node_agent_shell.hpp"
#include "actors/world/epochs.hpp"
#include "apps/troupe/launch/job.hpp"
#include "core/ids.hpp"

namespace troupe::apps {

/// What is the same for all ranks of a generation.
struct Generation {
  int number = 0;
  std::string master_addr;
  int master_port = 0;
  std::string control_host;  ///< where rank 0 is to listen, without brackets
  int control_port = 0;
  std::string fence_token;
  std::vector<actors::Seat> seats;  ///< by rank
};

/// A rank's number in the whole job, and on its node.
struct RankNumbers {
  int rank = 0;
  int local_rank = 0;
};
RankNumbers numbers_of(const Generation& generation, int rank);
/// How many ranks a node has.
int ranks_of_node(const Generation& generation, int node);

/// Where the files of one process start are: <run>/attempt_<generation>/<slot>. Slots are those of this node,
/// here and below: a process's is the local rank that it has at first, and a spare's comes after all of them.
std::filesystem::path rank_directory(const Job& job, int generation, int slot);

/// The environment of a process; `rank` is the job's, none for a spare, whose RANK, LOCAL_RANK and
/// ROLE_RANK are "spare", so that a program which does not know about spares cannot take one for a rank. It
/// is `inherited` (NAME=value each), torchrun's variables, and these:
/// | variable | meaning |
/// |---|---|
/// | TROUPE_JOB_ID | unique name of the job; shared-memory segments begin with troupe-<it>- |
/// | TROUPE_JOB_TOKEN | 64 hexadecimal digits, which ranks prove to each other that they know |
/// | TROUPE_GENERATION | 0, and one more for each restart |
/// | TROUPE_CONTROL_ADDR | HOST:PORT where rank 0 is to listen; IPv6: [ADDRESS]:PORT |
/// | TROUPE_NODE_ID | stable name of the node |
/// | TROUPE_LAUNCHER_ID | mark_of(): unique for each node of a job |
/// | TROUPE_INSTANCE_ID | unique for each start of a process |
/// | TROUPE_FENCE_TOKEN | unique for each generation |
/// | TROUPE_LOG, TROUPE_LOG_JSON, TROUPE_LOG_FILE_MIB | where --log, --log-json, --log-file-mib are given |
/// | TROUPE_LOG_DIR | the rank's directory of this start; only if logs are kept |
/// | TROUPE_ERROR_FILE | where a failing rank writes {"message": ...} as torch's tools do |
/// | TROUPE_FAILURE_FILE | once a rank of this generation has failed, which and how |
/// | TROUPE_FLIGHT_RECORD | what the paths of the ranks' flight records begin with |
/// | TROUPE_SLOT | as in NodeAgentMachine; only if processes are kept over a failure |
/// | TROUPE_LOCAL_SLOT, TROUPE_LOCAL_RANKS | as above: the slot on this node, and its most ranks |
/// | TROUPE_EPOCH_FILE | as above: the epoch that is to be formed |
/// | TROUPE_MEMBER_FILE | as above: where the rank says that it takes part, and would stay |
/// | TROUPE_OWN_GPUS | 1 with --virtual-local-rank: each rank sees a GPU that no other sees |
/// | TROUPE_PROGRESS_FILE | where the job may write its last committed step, as decimal text |
std::vector<std::string> rank_environment(const Job& job, const Generation& generation,
                                          actors::ProcessPlace place,
                                          const std::vector<std::string>& inherited);

/// This process's environment.
std::vector<std::string> own_environment();

std::filesystem::path error_file(const Job& job, int generation, int slot);
std::filesystem::path failure_file(const Job& job, int generation);
std::filesystem::path progress_file(const Job& job);
std::filesystem::path epoch_file(const Job& job);
std::filesystem::path member_file(const Job& job, int slot);
std::filesystem::path flight_record(const Job& job);

/// The epoch of a generation, as its ranks call it.
inline core::Epoch epoch_of(int generation) {
  return core::Epoch{static_cast<std::uint64_t>(generation) + 1};
}

}  // namespace troupe::apps
