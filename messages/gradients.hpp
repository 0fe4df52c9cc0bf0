#pragma once

#include <cstdint>
#include <string>

#include "core/ids.hpp"

namespace troupe::messages {

/// Trainer to GradientBucket: this parameter's gradient of this lane is complete (last microbatch only).
struct GradientReady {
  core::Step step{};
  core::Lane lane{};
  core::ParameterIndex parameter{};

  friend bool operator==(const GradientReady&, const GradientReady&) = default;
};

/// Trainer to GradientBucket: the backward of this lane has ended; gradients that are not ready by now will
/// not come. Lane -1: a round in which the rank has no lane, and only takes part in the others' collectives.
struct LaneEnded {
  core::Step step{};
  core::Lane lane{};

  friend bool operator==(const LaneEnded&, const LaneEnded&) = default;
};

/// Device to Trainer: this lane's gradients of the bucket are added to the partial sums, here or where they
/// are reduced to; the next lane may write its own. A number after all lanes: a round in which the rank has
/// no lane is reduced, and reads the memory of gradients no more.
struct LaneMerged {
  core::Step step{};
  core::Lane lane{};
  core::BucketIndex bucket{};

  friend bool operator==(const LaneMerged&, const LaneMerged&) = default;
};

/// GradientBucket to RankSupervisor, after the last lane: everything of this bucket is being sent to the
/// device. `refusal` is empty, or names parameters whose gradients are missing or came too often: the step
/// must not commit.
struct BucketReady {
  core::Step step{};
  core::BucketIndex bucket{};
  std::string refusal;

  friend bool operator==(const BucketReady&, const BucketReady&) = default;
};

/// GradientBucket to RankSupervisor and subscribers: the reduced gradient is in the buffer.
struct BucketReduced {
  core::Step step{};
  core::BucketIndex bucket{};

  friend bool operator==(const BucketReduced&, const BucketReduced&) = default;
};

}  // namespace troupe::messages
