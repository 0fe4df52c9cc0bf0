#include "actors/planes/step/data_plane.hpp"

#include <utility>

#include "actors/roles/machine.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

core::Result<std::unique_ptr<DataPlane>> DataPlane::create(gpu::Device& device, const TrainingPlan& plan,
                                                           Options options) {
  auto program =
      options.program ? RankProgram(plan, options.rank, *options.program) : RankProgram(plan, options.rank);
  auto arena = TRY(Arena::create(device, plan, program, options.collectives));
  auto streams = TRY(StepStreams::create(device, program, plan.buckets.size()));
  return std::unique_ptr<DataPlane>(new DataPlane(
      {device, std::move(options), {plan, std::move(program), std::move(arena)}, std::move(streams)}));
}

// The streams drain here, before anything that their tasks access is destroyed.
DataPlane::~DataPlane() {
  marks_.drain();
  in_.streams = {};
}

void DataPlane::perform(const StepWork& work) {
  std::visit(Overloaded{[&](const PrepareBucket& w) { sums_.prepare(w); },
                        [&](const LaunchCollective& w) { launches_.perform(w); },
                        [&](const PrepareVerdict& w) { verdict_.keep(w); },
                        [&](const StepShard& w) { updates_.step(w); }},
             work);
}

gpu::EventView DataPlane::updated(core::BucketIndex bucket) const {
  return bucket.value < in_.streams.buckets.size() ? in_.streams.buckets[bucket].updated.get()
                                                   : marks_.tensors();
}

BusyMoment DataPlane::moment() const {
  const auto now = in_.device.now();
  return {now, communication_.busy(now), updates_.busy(now)};
}

std::shared_ptr<const ComputeWatch> DataPlane::watch_compute() {
  const auto compute = marks_.compute();
  if (compute == nullptr) return nullptr;
  // Owned by the caller and by the notification, which may come after the caller has stopped waiting.
  auto watch = std::make_shared<ComputeWatch>();
  compute->notify([this, watch] { watch->reach(moment()); });
  return watch;
}

core::Result<StepVerdict::Rest> DataPlane::retire(std::chrono::nanoseconds deadline) {
  if (const auto compute = marks_.compute()) TRY(compute->synchronize(deadline));
  for (const auto* stream : {&in_.streams.accumulate, &in_.streams.communication, &in_.streams.update})
    TRY((*stream)->synchronize(deadline));
  communication_.let_go();
  in_.options.post = [](const messages::Envelope&) {};
  in_.options.launched = {};
  in_.options.tracer = nullptr;
  return verdict_.rest();
}

bool DataPlane::rests_like(const DataPlane& other) const {
  // A group of this epoch knows no other memory than the one that was registered with it.
  return !communication_.is_registered() && in_.tensors.arena.rests_like(other.in_.tensors.arena);
}

bool DataPlane::take_memory(DataPlane& retired) {
  if (!rests_like(retired)) return false;
  in_.tensors.arena.swap_resting(retired.in_.tensors.arena);
  return true;
}

}  // namespace troupe::actors
