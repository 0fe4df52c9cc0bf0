#pragma once

#include <cstdint>

#include "core/ids.hpp"

namespace troupe::messages {

/// Device to ParameterShard, and on to GradientBucket: the shard is stepped, its gradients are cleared.
struct ShardStepped {
  core::Step step{};
  core::BucketIndex bucket{};

  friend bool operator==(const ShardStepped&, const ShardStepped&) = default;
};

/// ParameterShard to RankSupervisor: this rank's shard of the bucket holds the parameters after `step`.
struct ShardUpdated {
  core::Step step{};
  core::BucketIndex bucket{};

  friend bool operator==(const ShardUpdated&, const ShardUpdated&) = default;
};

/// Trainer to ParameterShards: parameters and optimizer were loaded; they hold the state after `step`.
struct StateRestored {
  core::Step step{};

  friend bool operator==(const StateRestored&, const StateRestored&) = default;
};

/// Trainer to ParameterShard: entry `entry` of the program may gather the full parameters of a unit, whose
/// slot is no longer being read.
struct UnitWanted {
  core::Step step{};
  core::PlanEntryIndex entry{};

  friend bool operator==(const UnitWanted&, const UnitWanted&) = default;
};

/// ParameterShard to Trainer: the unit's parameters are gathered and may be read.
struct UnitGathered {
  core::Step step{};
  core::PlanEntryIndex entry{};
  core::BucketIndex bucket{};

  friend bool operator==(const UnitGathered&, const UnitGathered&) = default;
};

/// ParameterShard to Trainer: the rank's part of the bucket holds the parameters after `step`, and may be
/// read.
struct Published {
  core::Step step{};
  core::BucketIndex bucket{};

  friend bool operator==(const Published&, const Published&) = default;
};

}  // namespace troupe::messages
