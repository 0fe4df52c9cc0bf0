#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.hpp"
#include "core/program/program_text.hpp"

namespace troupe::core {

/// What carries a rank's messages.
struct Link {
  double bytes_per_second = 0;
  double latency_seconds = 0;  ///< of an empty message

  friend bool operator==(const Link&, const Link&) = default;
};

/// Ranks with consecutive numbers are on one node, `node_ranks` at a time.
struct Links {
  Link inner;  ///< within a node
  Link outer;  ///< between nodes
  int node_ranks = 8;
  /// Distance in ranks between neighbours of a domain: the number of ranks that share a model's layers.
  int tensor_parallel = 1;
};

/// Whether all members of the entry's group are on one node. The last axis of the first domain groups
/// neighbours, that of experts ranks as far apart as experts are distributed; other axes and the world span
/// all.
bool is_within_node(const Program& program, const ProgramEntry& entry, const Links& links);

/// Time of one collective in the alpha-beta model, with n members, latency a, and b bytes that the rank at
/// `place` sends (bytes_sent(), memory.hpp) at bandwidth B (Thakur, Rabenseifner and Gropp 2005, Optimization
/// of Collective Communication Operations in MPICH):
///
///     reduce_scatter                (n - 1) a + b / B         ring
///     all_gather                    c (n - 1) a + b / B       ring, in c chunks (1 except for gradients)
///     all_to_all                    c (n - 1) a + b / B       pairwise, in c chunks
///     all_reduce                    2 (n - 1) a + b / B       ring; or, if faster,
///                                   2 ceil(log2 n) (a + whole / B)   a binomial tree
///
/// It ignores switches, links that groups share, and the optimisations of libraries.
double seconds_of(const ProgramEntry& entry, std::int64_t place, const Link& link);

/// Time of one communicator's collectives in a step.
struct CommunicationTime {
  Communicator communicator;
  bool within_node = false;
  std::int64_t launches = 0;
  std::int64_t bytes = 0;  ///< sent by the rank
  double seconds = 0;
  double exposed_seconds = 0;  ///< of these, the time that the trainer waited
};

struct StepTime {
  std::vector<CommunicationTime> communicators;  ///< in the order in which a step first launches on them
  double compute_seconds = 0;
  double step_seconds = 0;

  double communication_seconds() const;
  double exposed_seconds() const { return step_seconds - compute_seconds; }
};

/// One step among many, with ranks in lockstep: collectives start in the order of their stream, after the
/// points that their entries name, and the trainer begins a point when everything it needs is complete. A
/// round computes for `round_seconds`, divided among units by their elements, a third of it in forward:
/// backward has two products for each of forward's. The optimizer takes no time.
StepTime step_time(const Program& program, const Links& links, double round_seconds);

}  // namespace troupe::core
