#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/optimizer/parameter_groups.hpp"
#include "core/options/options.hpp"
#include "core/plan/lanes.hpp"
#include "core/plan/mesh.hpp"
#include "core/plan/placement.hpp"
#include "core/plan/plan.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// One contiguous parameter and gradient buffer: all parameters of one dtype whose optimizers keep the same
/// states and need the same layout.
struct TrainingBuffer {
  core::DType dtype = core::DType::f32;
  core::DType gradient_dtype = core::DType::f32;
  std::vector<core::ParameterIndex>
      parameters;  ///< in registration order; the layout's parameters in the same order
  core::BufferLayout layout;
  std::span<const std::string_view> states;  ///< names of what the optimizer keeps of each element
  bool whole_matrices = false;               ///< of optimizers that step nothing else
};

/// Where a parameter lies.
struct TrainingParameter {
  core::BufferIndex buffer{};
  core::BucketIndex bucket{};  ///< of the job
  core::ElementRange range;    ///< of the buffer
};

struct TrainingBucket {
  core::BufferIndex buffer{};
  core::ElementRange range;  ///< of the buffer
  std::vector<core::ParameterIndex> parameters;
};

/// Everything that follows from the parameters, the options and the number of ranks: the same on all ranks.
struct TrainingPlan {
  core::TrainingOptions options;
  core::WorldSize world{1};
  std::vector<core::ParameterSpec> specs;
  std::vector<core::GroupSettings> groups;  ///< that ParameterSpec::group is an index of
  std::vector<TrainingParameter> parameters;
  std::vector<TrainingBuffer> buffers;
  std::vector<TrainingBucket> buckets;  ///< in the order in which backward completes them
  std::vector<core::LaneRange> lanes;   ///< of each rank
  core::Plan step;                      ///< of one step
  core::Mesh mesh;
  std::string configuration;  ///< one line per setting

  /// Ranks that share one copy of the optimizer.
  int shards() const;
  /// The part of a bucket, as a range of its buffer, that the rank with this index reduces, steps and
  /// gathers.
  core::ElementRange shard(core::BucketIndex bucket, core::Rank rank) const;
  bool optimizer_is_sharded() const;
  const core::GroupSettings& group_of(core::ParameterIndex parameter) const {
    return groups[specs[parameter.value].group];
  }
};

/// Errc::invalid_argument says which option or parameter cannot be, and what could.
core::Result<TrainingPlan> plan_training(std::vector<core::ParameterSpec> specs,
                                         core::TrainingOptions options, core::WorldSize world);

}  // namespace troupe::actors
