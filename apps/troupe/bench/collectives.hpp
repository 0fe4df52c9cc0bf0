#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps {

/// One measured case.
struct CollectiveTime {
  std::string backend;
  std::string operation;
  int ranks = 0;
  std::size_t bytes = 0;  ///< of the whole tensor: what all-reduce takes and all-gather gives
  double seconds = 0;     ///< of one operation: the median of several batches, as rank 0 sees them
};

/// The names of the operations that can be measured.
std::vector<std::string> collective_names();

struct CollectiveBench {
  std::vector<int> ranks{2, 4};
  std::vector<std::string> operations{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                      "all_to_all"};
  std::vector<std::size_t> bytes{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
};

/// Forks the ranks, so the process must not have threads yet, and measures f32 operations with shared_memory
/// and tcp in turn, batch by batch, and plain sockets that move the same bytes ("loopback"): what else runs
/// on the machine falls on all. Waits for the ranks, and leaves nothing behind.
core::Result<std::vector<CollectiveTime>> measure_collectives(const CollectiveBench& bench);

}  // namespace troupe::apps
