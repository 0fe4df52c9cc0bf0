#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/roles/gradient_bucket.hpp"
#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/plan/lanes.hpp"
#include "core/plan/mesh.hpp"
#include "core/plan/placement.hpp"
#include "core/plan/plan.hpp"
#include "core/result.hpp"
#include "core/state/stacked_tensor.hpp"

namespace troupe::actors {

/// One trainable tensor, as the trainer registers it. All ranks register the same ones in the same order,
/// which should be the order of forward.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  core::DType dtype = core::DType::f32;  ///< f32, bf16 or f16; narrow ones get an fp32 master copy
  bool weight_decay = true;
  bool shared_embedding = false;      ///< gets a bucket of its own
  core::StackingRule stacking;        ///< how checkpoints store it, and its optimizer state; empty: as it is
  bool allow_shape_mismatch = false;  ///< a restore takes another shape: what is common; the rest is zero

  std::int64_t elements() const;
  /// What checkpoints store of it, in the order of its rows.
  core::Result<std::vector<core::ShardedTensor>> stored_parts() const;
};

enum class OptimizerKind : std::uint8_t { sgd, adam, adamw };

/// PyTorch's formulas and defaults.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0;  ///< of sgd
};

/// What all ranks of a job must have in common.
struct TrainingOptions {
  core::Strategy strategy = core::Strategy::zero1;
  core::Numerics numerics = core::Numerics::ordered;
  /// Logical data-parallel workers; 0 means one per rank. The result of `ordered` numerics depends on this
  /// number and not on the number of ranks.
  int lanes = 0;
  /// Microbatches that a lane accumulates in a step.
  int microbatches = 1;
  /// Reductions run under backward and gathers under the next forward; otherwise between them.
  bool overlap = true;
  /// Elements after which a bucket closes; none: max(40,000,000, 1,000,000 x ranks) with overlap, else one
  /// bucket.
  std::optional<std::int64_t> bucket_elements;
  /// Average over lanes and microbatches; otherwise sum.
  bool average = true;
  /// `fast` numerics only: gradients kept and sent in the parameters' dtype instead of f32.
  bool gradients_in_parameter_dtype = false;
  /// Replicas of the sharded optimizer; must divide the number of ranks.
  int optimizer_instances = 1;
  UnusedParameters unused_parameters = UnusedParameters::refuse;
  double clip_norm = 0;  ///< global L2 norm to clip at; 0: no clipping
  OptimizerOptions optimizer;
};

/// One contiguous parameter and gradient buffer: all parameters of one dtype.
struct JobBuffer {
  core::DType dtype = core::DType::f32;
  core::DType gradient_dtype = core::DType::f32;
  std::vector<std::uint32_t>
      parameters;  ///< in registration order; the layout's parameters in the same order
  core::BufferLayout layout;
};

/// Where a parameter lies.
struct JobParameter {
  std::uint32_t buffer = 0;
  std::uint32_t bucket = 0;  ///< of the job
  core::ElementRange range;  ///< of the buffer
};

struct JobBucket {
  std::uint32_t buffer = 0;
  core::ElementRange range;  ///< of the buffer
  std::vector<std::uint32_t> parameters;
};

/// Everything that follows from the parameters, the options and the number of ranks: the same on all ranks.
struct Job {
  TrainingOptions options;
  core::WorldSize world{1};
  std::vector<ParameterSpec> specs;
  std::vector<JobParameter> parameters;
  std::vector<JobBuffer> buffers;
  std::vector<JobBucket> buckets;      ///< in the order in which backward completes them
  std::vector<core::LaneRange> lanes;  ///< of each rank
  core::Plan plan;                     ///< of one step
  core::Mesh mesh;
  std::string configuration;  ///< one line per setting

  /// Ranks that share one copy of the optimizer.
  int shards() const;
  /// The part of a bucket, as a range of its buffer, that the rank with this index reduces, steps and
  /// gathers.
  core::ElementRange shard(std::uint32_t bucket, core::Rank rank) const;
  bool optimizer_is_sharded() const;
};

/// Errc::invalid_argument says which option or parameter cannot be, and what could.
core::Result<Job> plan_job(std::vector<ParameterSpec> specs, TrainingOptions options, core::WorldSize world);

}  // namespace troupe::actors
