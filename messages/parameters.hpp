#pragma once

#include <cstdint>

#include "core/ids.hpp"

namespace troupe::messages {

/// Device to ParameterShard, and on to GradientBucket: the shard is stepped, its gradients are clear.
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

/// ParameterShard to Trainer: the whole bucket may be read; it holds the parameters after `step`.
struct Published {
  core::Step step{};
  core::BucketIndex bucket{};

  friend bool operator==(const Published&, const Published&) = default;
};

}  // namespace troupe::messages
