#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace troupe::core {

/// A number with a meaning: numbers of different meanings do not mix. `value` is public, because formulas
/// need it.
template <class Tag, class Integer>
struct Id {
  Integer value{};

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

/// Global rank of a process in the job, from 0.
using Rank = Id<struct RankTag, std::int32_t>;
/// Number of ranks in the job.
using WorldSize = Id<struct WorldSizeTag, std::int32_t>;
/// Optimizer step, from 0.
using Step = Id<struct StepTag, std::int64_t>;
/// How many optimizer steps have been committed.
using StepCount = Id<struct StepCountTag, std::int64_t>;
/// Generation of the membership. Grows with every change; a message from an older one is refused.
using Epoch = Id<struct EpochTag, std::uint64_t>;
/// A logical data-parallel worker, from 0. Data order and random numbers depend on (step, lane), not on rank.
using Lane = Id<struct LaneTag, std::int32_t>;
/// Place of a parameter in the list that the trainer registered, from 0.
using ParameterIndex = Id<struct ParameterIndexTag, std::uint32_t>;
/// Index of a bucket, from 0, in the order in which backward completes buckets when units are used in their
/// default order.
using BucketIndex = Id<struct BucketIndexTag, std::uint32_t>;
/// Index of a unit (parameters gathered together), from 0: its position in forward unless another order is
/// declared.
using UnitIndex = Id<struct UnitIndexTag, std::uint32_t>;
/// Place of a parameter buffer in its plan, from 0.
using BufferIndex = Id<struct BufferIndexTag, std::uint32_t>;
/// Place of a collective in the plan of a step, from 0.
using PlanEntryIndex = Id<struct PlanEntryIndexTag, std::int32_t>;

}  // namespace troupe::core

template <class Tag, class Integer>
struct std::hash<troupe::core::Id<Tag, Integer>> {
  std::size_t operator()(const troupe::core::Id<Tag, Integer>& id) const noexcept {
    return std::hash<Integer>{}(id.value);
  }
};
