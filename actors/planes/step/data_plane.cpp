#include "actors/planes/step/data_plane.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

core::ElementRange overlap(core::ElementRange a, core::ElementRange b) {
  const auto start = std::max(a.start, b.start);
  return {start, std::max(start, std::min(a.end, b.end))};
}

}  // namespace

core::Result<std::unique_ptr<DataPlane>> DataPlane::create(gpu::Device& device, const TrainingPlan& plan,
                                                           Options options) {
  auto state = std::make_unique<State>(device, plan, std::move(options));
  TRY(state->open());
  return std::unique_ptr<DataPlane>(new DataPlane(std::move(state)));
}

DataPlane::DataPlane(std::unique_ptr<State> state) : state_(std::move(state)) {}

// The streams drain here, before anything that their tasks access is destroyed.
DataPlane::~DataPlane() {
  state_->compute.reset();
  state_->accumulate.reset();
  state_->communication.clear();
  state_->update.reset();
}

core::Result<void> DataPlane::set_groups(DataPlaneGroups groups) {
  TRY(state_->check(groups));
  state_->take(std::move(groups));
  for (const auto& group : state_->groups.owned) {
    const bool is_registered = TRY(group->use_memory(state_->arena.carried()));
    state_->is_registered = state_->is_registered || is_registered;
  }
  return {};
}

const RankProgram& DataPlane::program() const {
  return state_->program;
}

void DataPlane::adopt_parameters() {
  for (const auto bucket : state_->plan.buckets.indices()) state_->adopt(bucket);
}

void DataPlane::adopt(core::BucketIndex bucket, core::ElementRange part) {
  const auto whole = state_->optimizer_range(bucket);
  state_->adopt(bucket, {whole.start + part.start, whole.start + part.end});
}

void DataPlane::adopt(core::ParameterIndex parameter) {
  const auto& place = state_->plan.parameters[parameter];
  const auto part = overlap(place.range, state_->optimizer_range(place.bucket));
  if (part.size() > 0) state_->adopt(place.bucket, part);
}

bool DataPlane::rounds_parameters() const {
  return state_->rounds_values();
}

void DataPlane::round_parameters() {
  state_->round_values();
}

void DataPlane::gather_parameters() {
  state_->gather_loaded();
}

int DataPlane::gather_unit(const std::vector<core::BucketIndex>& buckets) {
  return state_->gather_unit(buckets);
}

void DataPlane::exchange_loaded(LoadedBytes bytes) {
  state_->exchange_loaded(std::move(bytes));
}

core::Result<void> DataPlane::clear_gradients(std::chrono::nanoseconds deadline) {
  // Without "compute" the trainer writes gradients from the host or on streams of its own, which know none of
  // these events: the memory is zero when this returns.
  const bool waits = !state_->compute && !state_->device.is_host_memory();
  const auto stream = waits ? state_->update.get() : state_->compute.get();
  for (const auto memory : state_->arena.added_to()) {
    if (memory.bytes == 0) continue;
    if (stream) {
      gpu::zero(memory, stream);
    } else {
      gpu::declare(state_->device, "zero", {}, {memory});
      gpu::zero(memory);
    }
  }
  if (waits) TRY(stream->synchronize(deadline));
  return {};
}

void DataPlane::follow_order() {
  state_->program.follow_order();
}

void DataPlane::perform(const StepWork& work) {
  std::visit(Overloaded{[&](const PrepareBucket& w) { state_->prepare(w); },
                        [&](const LaunchCollective& w) { state_->launch(w); },
                        [&](const PrepareVerdict& w) { state_->keep_verdict(w); },
                        [&](const StepShard& w) { state_->step_shard(w); }},
             work);
}

void DataPlane::abort(const core::Error& reason) {
  state_->abort(reason);
}

core::Result<gpu::StreamView> DataPlane::compute_stream() {
  if (!state_->compute) {
    for (auto& bucket : state_->buckets) bucket->computed = TRY(state_->device.create_event());
    state_->read = TRY(state_->device.create_event());
    state_->tensors = TRY(state_->device.create_event());
    state_->compute = TRY(state_->device.create_stream({"compute", 0}));
  }
  return state_->compute.get();
}

gpu::StreamView DataPlane::compute() const {
  return state_->compute.get();
}

std::shared_ptr<const ComputeWatch> DataPlane::watch_compute() {
  if (!state_->compute) return nullptr;
  // Owned by the caller and by the notification, which may come after the caller has stopped waiting.
  auto watch = std::make_shared<ComputeWatch>();
  state_->compute->notify([this, watch] { watch->reach(moment()); });
  return watch;
}

BusyMoment DataPlane::moment() const {
  const auto busy = times();
  return {state_->device.now(), busy.communication, busy.optimizer};
}

gpu::BufferView DataPlane::parameter(core::ParameterIndex parameter, int slot) const {
  const auto& place = state_->plan.parameters[parameter];
  if (slot >= 0) return state_->arena.gathered(place.bucket, slot, place.range);
  return state_->arena.parameters(place.bucket, place.range);
}

gpu::BufferView DataPlane::gradient(core::ParameterIndex parameter, core::Lane lane, int source) const {
  const auto& place = state_->plan.parameters[parameter];
  const auto& program = state_->program;
  CHECK(source >= 0 && source < program.sources(place.bucket), "the source exists");
  // In `fast` numerics they may be summed in any order.
  const int slot =
      state_->is_ordered() ? program.source_slot(place.bucket, program.round_of(lane), source) : 0;
  if (program.reduces_each_round()) {
    return state_->arena.full_gradients(place.bucket, program.gradient_slot(place.bucket), place.range, slot);
  }
  return state_->arena.gradients(place.bucket, slot, place.range);
}

DataPlane::Resting DataPlane::resting_parameter(core::ParameterIndex parameter) const {
  const auto& place = state_->plan.parameters[parameter];
  const auto held = state_->program.held(state_->plan.placements_of(place.bucket).parameters, place.bucket);
  const auto range = overlap(place.range, held);
  if (range.size() == 0) return {};
  return {{range.start - place.range.start, range.end - place.range.start},
          state_->arena.parameters(place.bucket, range)};
}

DataPlane::Resting DataPlane::reduced_gradient(core::ParameterIndex parameter) const {
  const auto& place = state_->plan.parameters[parameter];
  const auto held = state_->program.held(state_->plan.placements_of(place.bucket).gradients, place.bucket);
  const auto range = overlap(place.range, held);
  if (range.size() == 0) return {};
  return {{range.start - place.range.start, range.end - place.range.start},
          state_->arena.gradients(place.bucket, 0, range)};
}

gpu::BufferView DataPlane::state(StateKind kind, core::BucketIndex bucket) const {
  switch (kind) {
    case StateKind::parameter:
      return state_->arena.parameters(bucket, state_->optimizer_range(bucket));
    case StateKind::master:
      return state_->arena.master(bucket);
    case StateKind::first_state:
      return state_->arena.optimizer_state(bucket, 0);
    case StateKind::second_state:
      return state_->arena.optimizer_state(bucket, 1);
    case StateKind::trainer:
      break;
  }
  return {};
}

gpu::EventView DataPlane::updated(core::BucketIndex bucket) const {
  if (bucket.value < state_->buckets.size()) return state_->buckets[bucket]->updated.get();
  return state_->tensors.get();
}

void DataPlane::restore_optimizer_steps(core::StepCount steps, std::vector<std::int64_t> missed) {
  state_->steps_missed = std::move(missed);
  for (auto& bucket : state_->buckets) bucket->optimizer_steps = steps.value;
}

BucketDigest DataPlane::bucket_digest(core::BucketIndex bucket) const {
  const auto held = state_->program.held(state_->plan.placements_of(bucket).parameters, bucket);
  const auto view = state_->arena.parameters(bucket, held);
  return {held, core::hash64({view.data, view.bytes})};
}

const DeviceMemory& DataPlane::memory() const {
  return state_->arena.taken();
}

DataPlaneTimes DataPlane::times() const {
  const auto now = state_->device.now();
  return {state_->communicating.total(now), state_->updating.total(now)};
}

std::chrono::nanoseconds DataPlane::last_launch(core::BucketIndex bucket) const {
  return std::chrono::nanoseconds(state_->buckets[bucket]->launched_ns.load());
}

core::StepCount DataPlane::optimizer_steps() const {
  for (const auto bucket : state_->buckets.indices()) {
    if (state_->plan.is_trainable(bucket)) return {state_->buckets[bucket]->optimizer_steps.load()};
  }
  return {};
}

}  // namespace troupe::actors
