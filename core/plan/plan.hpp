#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/plan/mesh.hpp"
#include "core/plan/placement.hpp"
#include "core/plan/strategy.hpp"
#include "core/result.hpp"

namespace troupe::core {

enum class CollectiveKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all };
std::string_view name_of(CollectiveKind kind) noexcept;

enum class PlanPurpose : std::uint8_t {
  exchange_gradients,       ///< ordered: the owner of each part gets the subtree roots of all ranks
  reduce_gradients,         ///< fast: sums the gradients of a bucket
  reduce_across_instances,  ///< fast: sums a reduced shard over the copies of the optimizer
  gather_gradients,         ///< ordered without sharding: the reduced parts come together on all ranks
  verdict,                  ///< norm, NaN/Inf count and the will to commit, in one small sum
  gather_parameters,        ///< brings the updated shards of a bucket to all ranks
};
std::string_view name_of(PlanPurpose purpose) noexcept;

/// One collective of a step.
struct PlanEntry {
  PlanEntryIndex index{};
  CollectiveKind kind = CollectiveKind::all_reduce;
  PlanPurpose purpose = PlanPurpose::verdict;
  GroupKind group = GroupKind::world;
  std::optional<BucketIndex> bucket;
  DType dtype = DType::f32;
  /// What each member of the group puts in, in group order. In an exchange that is its subtree roots of the
  /// parts of all receivers.
  std::vector<std::int64_t> elements;
  std::int64_t bytes = 0;  ///< that the member with the largest input puts in

  friend bool operator==(const PlanEntry&, const PlanEntry&) = default;
};

/// For people: "reduce_scatter of bucket 3".
std::string describe(const PlanEntry& entry);

/// The collectives of one step, in the order in which every rank launches them.
struct Plan {
  std::vector<PlanEntry> entries;

  /// The canonical text, one line per entry.
  std::vector<std::string> lines() const;
  /// Equal on two ranks exactly when their lines are (hash64).
  std::uint64_t hash() const;

  friend bool operator==(const Plan&, const Plan&) = default;
};

/// What to tell people about the first line in which two plans differ; nothing when they are equal.
std::optional<std::string> first_difference(std::span<const std::string> ours,
                                            std::span<const std::string> theirs);

struct PlannedBucket {
  std::int64_t elements = 0;
  DType gradient_dtype = DType::f32;
  DType parameter_dtype = DType::f32;
  bool expert = false;
};

/// What the plan of a step follows from. Buckets are in the order in which backward completes them.
struct StepDescription {
  Strategy strategy = Strategy::ddp;
  Numerics numerics = Numerics::fast;
  int lanes = 0;  ///< of the dp_cp group; used by `ordered` only
  std::vector<PlannedBucket> buckets;
  std::int64_t verdict_elements = 1;  ///< i64 words of the verdict
};

/// Reductions in bucket order, then one verdict over the world, then gathers in forward order, which is from
/// the last bucket to the first. What a bucket needs follows from the strategy's placements. The plan has the
/// same shape for groups of one rank. Errc::invalid_argument for what does not fit together, and
/// Errc::unavailable for strategies whose steps are not planned yet (zero2, zero3, hsdp, hfsdp).
Result<Plan> plan_step(const StepDescription& step, const Mesh& mesh);

}  // namespace troupe::core
