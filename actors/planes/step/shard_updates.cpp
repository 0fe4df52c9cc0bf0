#include "actors/planes/step/shard_updates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/planes/step/optimizer_step.hpp"
#include "actors/planes/step/ranges.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

void ShardUpdates::adopt_all() {
  for (const auto bucket : buckets_.indices()) adopt(bucket, {0, in_.tensors.optimizer_range(bucket).size()});
}

void ShardUpdates::adopt(core::BucketIndex bucket, core::ElementRange part) {
  // The trainer's kernels may have written the values.
  marks_.wait_all(in_.streams.update.get());
  const auto& arena = in_.tensors.arena;
  if (arena.has_own_master(bucket)) {
    const gpu::Elements master{arena.master(bucket), core::DType::f32};
    const auto values = arena.parameters(bucket, moved(part, in_.tensors.optimizer_range(bucket).start));
    gpu::cast({values, in_.tensors.tensor_class(bucket).storage},
              master.part(static_cast<std::size_t>(part.start), elements(part)), in_.streams.update.get());
  }
  // A gather or a save that comes before the first update reads what is adopted here.
  in_.streams.update->record(in_.streams.buckets[bucket].updated.get());
}

void ShardUpdates::adopt(core::ParameterIndex parameter) {
  const auto& place = in_.tensors.plan.parameters[parameter];
  const auto whole = in_.tensors.optimizer_range(place.bucket);
  const auto part = overlap(place.range, whole);
  if (part.size() > 0) adopt(place.bucket, moved(part, -whole.start));
}

bool ShardUpdates::rounds_parameters() const {
  const auto& buffers = in_.tensors.plan.buffers;
  return std::any_of(buffers.begin(), buffers.end(),
                     [](const TrainingBuffer& buffer) { return buffer.gathered.has_value(); });
}

void ShardUpdates::round_parameters() {
  for (const auto bucket : buckets_.indices()) {
    const auto& type = in_.tensors.tensor_class(bucket);
    if (!type.gathered) continue;
    for (const auto& segment : in_.tensors.segments(bucket, in_.tensors.kept(bucket).range)) {
      const gpu::Elements values{in_.tensors.arena.parameters(bucket, segment.in_buffer), type.storage};
      gpu::round_to_mx(*type.gathered, values, values, in_.streams.update.get());
    }
  }
  // The trainer waits for it before it goes on.
  in_.streams.update->notify([this] { in_.say(messages::Role::trainer, 0, messages::StateGathered{}); });
}

void ShardUpdates::restore_steps(core::StepCount steps, std::vector<std::int64_t> missed) {
  steps_missed_ = std::move(missed);
  for (auto& bucket : buckets_) bucket.optimizer_steps = steps.value;
}

void ShardUpdates::step(const StepShard& work) {
  auto& bucket = buckets_[work.bucket];
  // The step was decided by the verdict, which came after all of its collectives on their stream.
  marks_.wait_read(in_.streams.update.get());
  // ParameterShards enqueue concurrently, so the tasks of two buckets may interleave.
  in_.streams.update->notify([this, &bucket] {
    bucket.began = in_.device.now();
    busy_.begin(bucket.began);
  });
  carry_out(work);
  in_.streams.update->notify([this, &bucket, work] {
    const auto now = in_.device.now();
    busy_.end(now);
    if (in_.options.tracer) {
      in_.options.tracer->add({core::TraceEvent::Kind::span, "update",
                               fmt::format("optimizer bucket {}", work.bucket.value), bucket.began, now, 0,
                               bucket_flow(work.step, work.bucket)});
    }
    in_.say(messages::Role::parameter_shard, work.bucket.value,
            messages::ShardStepped{work.step, work.bucket});
  });
}

void ShardUpdates::carry_out(const StepShard& work) {
  auto& bucket = buckets_[work.bucket];
  if (work.commit) {
    const auto step = bucket.optimizer_steps.load() + 1;
    for (const auto& segment : in_.tensors.segments(work.bucket, in_.tensors.optimizer_range(work.bucket)))
      step_segment(work, segment, step);
    bucket.optimizer_steps = step;
  }
  sums_.clear_after(work);
  in_.streams.update->record(in_.streams.buckets[work.bucket].updated.get());
  bucket.stepped = work.step.value;
}

void ShardUpdates::step_segment(const StepShard& work, const RankTensors::Segment& segment,
                                std::int64_t step) {
  const auto& plan = in_.tensors.plan;
  const auto& arena = in_.tensors.arena;
  const auto bucket = work.bucket;
  const auto& buffer = plan.buffers[plan.buckets[bucket].buffer];
  const auto part = [&](gpu::BufferView whole) {
    return whole.bytes == 0 ? whole
                            : whole.subview(static_cast<std::size_t>(segment.in_shard) * sizeof(float),
                                            elements(segment.in_buffer) * sizeof(float));
  };
  gpu::ParameterStep parameter;
  parameter.gradient = {arena.gradients(bucket, 0, segment.in_buffer), buffer.gradient_dtype};
  parameter.gradient_factor = static_cast<float>(work.gradient_factor);
  if (sums_.are_cleared_by_update(bucket)) parameter.cleared = arena.gradients(bucket, 0, segment.in_buffer);
  parameter.master = part(arena.master(bucket));
  const gpu::Elements values{arena.parameters(bucket, segment.in_buffer), buffer.dtype};
  // Blocks are rounded from main values after all of them are stepped.
  if (arena.has_own_master(bucket) && !buffer.gathered) parameter.parameter = values;
  std::vector<gpu::BufferView> states;
  for (std::size_t i = 0; i < buffer.states.size(); ++i)
    states.push_back(part(arena.optimizer_state(bucket, i)));
  const auto& spec = plan.specs[segment.parameter];
  if (!steps_missed_.empty()) step -= steps_missed_[segment.parameter.value];
  {
    const auto scratch = arena.optimizer_scratch();
    std::unique_lock lock(scratch_mutex_, std::defer_lock);
    if (scratch.bytes > 0) lock.lock();
    step_optimizer({plan.group_of(segment.parameter), spec, work.learning_rate, step}, parameter, states,
                   scratch, in_.streams.update.get());
  }
  if (buffer.gathered)
    gpu::round_to_mx(*buffer.gathered, {parameter.master, core::DType::f32}, values,
                     in_.streams.update.get());
}

core::Result<void> ShardUpdates::end_step(const messages::StepDecided& decided,
                                          std::chrono::nanoseconds deadline) {
  for (const auto bucket : buckets_.indices()) {
    const auto stepped = buckets_[bucket].stepped.load();
    if (!in_.tensors.plan.is_trainable(bucket) || stepped >= decided.step.value) continue;
    if (stepped >= 0 && stepped + 1 < decided.step.value)
      return core::fail(core::Errc::internal, "bucket {} has not made step {} yet", bucket.value,
                        stepped + 1);
    carry_out(step_of_shard(decided, bucket));
  }
  return in_.streams.update->synchronize(deadline);
}

}  // namespace troupe::actors
