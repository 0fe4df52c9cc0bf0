#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::actors {

/// Why a collective of a step is run.
enum class Purpose : std::uint8_t {
  exchange_gradients,  ///< all_to_all of the partial sums, then the owner of each shard finishes the tree
  reduce_gradients,    ///< reduce_scatter or all_reduce by the back-end
  gather_gradients,    ///< all_gather of reduced shards, where gradients are replicated
  verdict,             ///< the small reduction that decides the step
  gather_parameters,   ///< all_gather of stepped shards
};

struct PlannedCollective {
  Purpose purpose = Purpose::verdict;
  std::int32_t bucket = -1;  ///< -1 for the verdict
  std::string text;          ///< one canonical line: kind, group, bucket, bytes, dtype
};

/// The collectives of one step in the order in which every rank launches them.
struct StepPlan {
  std::vector<PlannedCollective> entries;
  std::uint64_t hash = 0;  ///< of the lines

  std::vector<std::string> lines() const;
};

}  // namespace troupe::actors
