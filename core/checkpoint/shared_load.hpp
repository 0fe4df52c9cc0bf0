#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/load_plan.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// The bytes that a load by several ranks moves; reads are counted in whole shards.
struct LoadBytes {
  std::uint64_t needed = 0;         ///< by all ranks together; a shard counts once for every rank
  std::uint64_t most_needed = 0;    ///< by the rank that needs most
  std::uint64_t distinct = 0;       ///< shards that any rank needs, each once
  std::uint64_t most_assigned = 0;  ///< to the rank that reads most when each shard is read once
  std::uint64_t most_moved = 0;     ///< sent or received by one rank in an exchange, whichever is larger

  friend bool operator==(const LoadBytes&, const LoadBytes&) = default;
};

/// The expected duration of a load in seconds:
///   read:     max(most_needed / rank, needed / storage)
///   exchange: max(most_assigned / rank, distinct / storage) + most_moved / exchange
double seconds_of(LoadMode mode, const LoadBytes& bytes, const LoadCosts& costs);
/// `wanted`, or the faster mode if that is automatic; `read` for a tie, or when nothing would be moved.
LoadMode choose_load(LoadMode wanted, const LoadBytes& bytes, const LoadCosts& costs);

/// A shard that is read once, and the parts of it that ranks take.
struct SharedRead {
  /// Bytes [begin, end) of the shard: everything the rank needs of it and possibly some bytes between.
  struct Part {
    std::uint32_t rank = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    friend bool operator==(const Part&, const Part&) = default;
  };
  const ManifestTensor* tensor = nullptr;
  const ManifestShard* shard = nullptr;
  std::uint32_t reader = 0;  ///< one of the ranks that need it
  bool for_all = false;      ///< every rank takes [begin, end) of the only part, whose rank is meaningless
  std::vector<Part> parts;   ///< by ascending rank, including the reader
};

struct SharedLoadPlan {
  std::vector<SharedRead> reads;  ///< in the order of files and bytes; each shard once
  LoadBytes bytes;
};

/// What the ranks of a job want: `common` is for all of them, `own[r]` for rank r only. The same shard may be
/// in both.
struct SharedTargets {
  std::vector<LoadTarget> common;
  std::vector<std::vector<LoadTarget>> own;
};

/// Which rank reads which shard: core::distribute() for a load. A pure function, so that ranks which plan
/// independently get the same plan. `manifest` must outlive the plan. Errors are those of plan_load().
Result<SharedLoadPlan> plan_shared_load(const Manifest& manifest, const SharedTargets& targets);

/// What `rank` takes of a shard: from the first to the last byte that goes to a target.
SharedRead::Part part_of(std::uint32_t rank, const LoadRead& read, std::span<const LoadTarget> targets);

/// Identifies a plan, for ranks that compare their plans.
std::uint64_t hash_of(const SharedLoadPlan& plan);

}  // namespace troupe::core
