#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/planes/step/arena.hpp"
#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/planes/step/training_plan.hpp"

namespace troupe::actors {

/// One rank's tensors: which parts of the model it keeps, by its program, and where they are.
struct RankTensors {
  /// A range of a tensor, which may be empty, and where it is.
  struct Part {
    core::ElementRange range;
    gpu::BufferView memory;
  };
  /// A range filled by one parameter, of a shard or of what is kept: the unit of optimizer settings.
  struct Segment {
    core::ElementRange in_buffer;
    std::int64_t in_shard = 0;
    core::ParameterIndex parameter{};
  };

  bool is_ordered() const { return plan.options.numerics == core::Numerics::ordered; }
  const core::TensorClass& tensor_class(core::BucketIndex bucket) const {
    return plan.inputs.classes[plan.buckets[bucket].buffer.value];
  }
  core::DType gradient_dtype(core::BucketIndex bucket) const {
    return plan.buffers[plan.buckets[bucket].buffer].gradient_dtype;
  }
  core::ElementRange optimizer_range(core::BucketIndex bucket) const {
    return program.held(plan.placements_of(bucket).optimizer, bucket);
  }
  /// What this rank keeps of a bucket's parameters.
  Part kept(core::BucketIndex bucket) const;
  /// The segments of the parameters in a range of the bucket's buffer.
  std::vector<Segment> segments(core::BucketIndex bucket, core::ElementRange range) const;
  /// Where lanes of a bucket are summed: a slot of the round's full gradients if each round reduces them,
  /// otherwise of those that are kept between rounds.
  gpu::BufferView summed(core::BucketIndex bucket, int slot, core::ElementRange range) const;

  /// The parameter's values; PS-1 says when they may be read. For a unit on demand, in the slot it was
  /// gathered into.
  gpu::BufferView parameter(core::ParameterIndex parameter, int slot = -1) const;
  /// Where a lane accumulates the parameter's gradient (it differs from lane to lane): the one of `source`,
  /// in the round in which this rank plays `lane`.
  gpu::BufferView gradient(core::ParameterIndex parameter, core::Lane lane, int source = 0) const;
  /// The part of the parameter that is kept here.
  Part resting_parameter(core::ParameterIndex parameter) const;
  /// The same for the reduced gradient; only the part that the rank's optimizer steps is valid.
  Part reduced_gradient(core::ParameterIndex parameter) const;
  /// What this rank keeps of a bucket: the range that the rank's optimizer steps, see StateKind. Empty for
  /// the trainer's own.
  gpu::BufferView state(StateKind kind, core::BucketIndex bucket) const;
  /// The part of this for a parameter; empty also where no such state is kept.
  Part state(StateKind kind, core::ParameterIndex parameter) const;
  /// Where each piece of the rank's state is.
  std::vector<gpu::BufferView> pieces_of(const RankState& state, std::span<const TrainerTensor> own) const;

  const TrainingPlan& plan;
  RankProgram program;
  Arena arena;
};

/// The same memory, for code that reads and writes host memory.
std::vector<std::span<std::byte>> spans_of(std::span<const gpu::BufferView> views);

}  // namespace troupe::actors
