#include "actors/planes/step/trainer_marks.hpp"

#include <cstring>

#include "core/errors.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

TrainerMarks::TrainerMarks(const StepContext& in) : in_(in) {
#ifdef NDEBUG
  poisons_ = in.device.kind() == gpu::DeviceKind::simulated;
#else
  poisons_ = in.device.is_host_memory();
#endif
}

core::Result<gpu::StreamView> TrainerMarks::compute_stream() {
  if (compute_) return compute_.get();
  for (std::size_t bucket = 0; bucket < in_.tensors.plan.buckets.size(); ++bucket)
    computed_.push_back(TRY(in_.device.create_event()));
  read_ = TRY(in_.device.create_event());
  tensors_written_ = TRY(in_.device.create_event());
  compute_ = TRY(in_.device.create_stream({"compute", 0}));
  return compute_.get();
}

// What trainers touch, and on which stream, is their affair. But what they may touch between two calls is
// known: this is what is declared, on the stream that they were given, or else as done by the host.
void TrainerMarks::acquired(core::BucketIndex bucket, int slot) {
  auto* const tasks = order();
  if (tasks == nullptr) return;
  if (slot < 0) acquired_.insert(bucket);
  const auto memory = slot >= 0
                          ? in_.tensors.arena.gathered(bucket, slot, in_.tensors.plan.buckets[bucket].range)
                          : in_.tensors.kept(bucket).memory;
  tasks->task("use of a bucket", {{memory}, {}});
}

void TrainerMarks::computed(core::ParameterIndex parameter, core::Lane lane) {
  const auto bucket = in_.tensors.plan.parameters[parameter].bucket;
  if (auto* const tasks = order()) {
    gpu::Accesses accesses;
    for (int source = 0; source < in_.tensors.program.sources(bucket); ++source)
      accesses.writes.push_back(in_.tensors.gradient(parameter, lane, source));
    tasks->task("backward", accesses);
  }
  if (compute_) compute_->record(computed_[bucket].get());
}

void TrainerMarks::read() {
  if (auto* const tasks = order()) {
    gpu::Accesses accesses;
    for (const auto bucket : acquired_) accesses.reads.push_back(in_.tensors.kept(bucket).memory);
    acquired_.clear();
    tasks->task("passes of the step", accesses);
  }
  if (compute_) compute_->record(read_.get());
}

void TrainerMarks::released(int slot) {
  const auto memory = in_.tensors.arena.slot(slot);
  if (auto* const tasks = order()) tasks->task("release of a unit", {{}, {memory}});
  // All ones are NaN in every floating type.
  const auto poison = [memory] { std::memset(memory.data, 0xFF, memory.bytes); };
  if (poisons_ && compute_) compute_->enqueue("poison", {}, poison);
  if (poisons_ && !compute_) poison();
  if (compute_) compute_->record(in_.streams.released[slot].get());
}

void TrainerMarks::tensors_written() {
  if (compute_) compute_->record(tensors_written_.get());
}

void TrainerMarks::wait_computed(core::BucketIndex bucket, gpu::StreamView stream) const {
  if (compute_) stream->wait(computed_[bucket].get());
}

void TrainerMarks::wait_read(gpu::StreamView stream) const {
  if (compute_) stream->wait(read_.get());
}

void TrainerMarks::wait_all(gpu::StreamView stream) const {
  if (compute_) compute_->record(read_.get());
  wait_read(stream);
}

}  // namespace troupe::actors
