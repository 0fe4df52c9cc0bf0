#pragma once

#include <cstdint>
#include <string>

#include "core/ids.hpp"

namespace troupe::messages {

/// Trainer to GradientBucket: this parameter's gradient of this lane is complete (last microbatch only).
struct GradientReady {
  core::Step step{};
  core::Lane lane{};
  std::uint32_t parameter = 0;

  friend bool operator==(const GradientReady&, const GradientReady&) = default;
};

/// Trainer to GradientBucket: the backward of this lane is over; what was not ready by now will not come.
struct LaneEnded {
  core::Step step{};
  core::Lane lane{};

  friend bool operator==(const LaneEnded&, const LaneEnded&) = default;
};

/// GradientBucket to RankSupervisor: the reduced gradient lies in the buffer; `refusal` names parameters
/// which had no gradient and whose policy is to refuse the step.
struct BucketReduced {
  core::Step step{};
  std::uint32_t bucket = 0;
  std::string refusal;

  friend bool operator==(const BucketReduced&, const BucketReduced&) = default;
};

}  // namespace troupe::messages
