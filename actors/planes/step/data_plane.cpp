#include "actors/planes/step/data_plane.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

core::Result<std::unique_ptr<DataPlane>> DataPlane::create(gpu::Device& device, const TrainingPlan& plan,
                                                           Options options) {
  auto state = std::make_unique<State>(device, plan, std::move(options));
  state->arena = TRY(Arena::create(device, plan, state->rank(), state->options.collectives));
  state->accumulate = TRY(device.create_stream({"accumulate", 0}));
  state->communication = TRY(device.create_stream({"communication", 1}));
  state->update = TRY(device.create_stream({"update", 0}));
  state->verdict_ready = TRY(device.create_event());
  for (auto& event : state->credit_free) event = TRY(device.create_event());
  state->buckets.resize(plan.buckets.size());
  for (auto& bucket : state->buckets) {
    bucket = std::make_unique<State::Bucket>();
    bucket->prepared = TRY(device.create_event());
    bucket->exchanged = TRY(device.create_event());
    bucket->reduced = TRY(device.create_event());
    bucket->updated = TRY(device.create_event());
  }
  return std::unique_ptr<DataPlane>(new DataPlane(std::move(state)));
}

DataPlane::DataPlane(std::unique_ptr<State> state) : state_(std::move(state)) {}

// The streams drain here, before anything that their tasks touch goes.
DataPlane::~DataPlane() {
  state_->compute.reset();
  state_->accumulate.reset();
  state_->communication.reset();
  state_->update.reset();
}

core::Result<void> DataPlane::set_groups(DataPlaneGroups groups) {
  state_->groups = std::move(groups);
  for (auto* group : {state_->groups.all.get(), state_->groups.inner.get(), state_->groups.outer.get()}) {
    if (group) TRY(group->use_memory(state_->arena.carried()));
  }
  return {};
}

void DataPlane::adopt_parameters() {
  for (const auto bucket : core::indices<core::BucketIndex>(state_->plan.buckets.size()))
    state_->adopt(bucket);
}

void DataPlane::adopt(core::BucketIndex bucket, core::ElementRange part) {
  const auto whole = state_range(state_->plan, bucket, state_->rank());
  state_->adopt(bucket, {whole.start + part.start, whole.start + part.end});
}

void DataPlane::gather_parameters() {
  state_->gather_loaded();
}

void DataPlane::exchange_loaded(LoadedBytes bytes) {
  state_->exchange_loaded(std::move(bytes));
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
    state_->compute = TRY(state_->device.create_stream({"compute", 0}));
  }
  return state_->compute.get();
}

void DataPlane::mark_computed(core::BucketIndex bucket) {
  if (state_->compute) state_->compute->record(state_->buckets[bucket.value]->computed.get());
}

void DataPlane::mark_read() {
  if (state_->compute) state_->compute->record(state_->read.get());
}

std::shared_ptr<const ComputeWatch> DataPlane::watch_compute() {
  if (!state_->compute) return nullptr;
  // Owned by the caller and by the notification, which may come when nobody waits any more.
  auto watch = std::make_shared<ComputeWatch>();
  state_->compute->notify([this, watch] { watch->reach(moment()); });
  return watch;
}

BusyMoment DataPlane::moment() const {
  const auto busy = times();
  return {state_->device.now(), busy.communication, busy.optimizer};
}

gpu::BufferView DataPlane::parameter(core::ParameterIndex parameter) const {
  const auto& place = state_->plan.parameters[parameter.value];
  return state_->arena.parameters(place.buffer, place.range);
}

gpu::BufferView DataPlane::gradient(core::ParameterIndex parameter, core::Lane lane) const {
  const auto& place = state_->plan.parameters[parameter.value];
  return state_->arena.gradients(place.buffer, state_->slot_of(lane), place.range);
}

gpu::BufferView DataPlane::reduced_gradient(core::ParameterIndex parameter) const {
  const auto& place = state_->plan.parameters[parameter.value];
  return state_->arena.gradients(place.buffer, 0, place.range);
}

gpu::BufferView DataPlane::state(StateKind kind, core::BucketIndex bucket) const {
  switch (kind) {
    case StateKind::parameter:
      return state_->arena.parameters(state_->plan.buckets[bucket.value].buffer,
                                      state_range(state_->plan, bucket, state_->rank()));
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
  return bucket.value < state_->buckets.size() ? state_->buckets[bucket.value]->updated.get() : nullptr;
}

void DataPlane::restore_optimizer_steps(core::StepCount steps) {
  for (auto& bucket : state_->buckets) bucket->optimizer_steps = steps.value;
}

std::uint64_t DataPlane::bucket_digest(core::BucketIndex bucket) const {
  const auto& place = state_->plan.buckets[bucket.value];
  auto view = state_->arena.parameters(place.buffer, place.range);
  return core::hash64({view.data, view.bytes});
}

std::size_t DataPlane::allocated_bytes() const {
  return state_->arena.bytes();
}

DataPlaneTimes DataPlane::times() const {
  auto began = state_->operation_began_ns.load();
  const auto now = state_->device.now();
  auto running = began == 0 ? 0 : now.count() - began;
  return {std::chrono::nanoseconds(state_->communication_ns.load() + running), state_->updating.total(now)};
}

std::chrono::nanoseconds DataPlane::last_launch(core::BucketIndex bucket) const {
  return std::chrono::nanoseconds(state_->buckets[bucket.value]->launched_ns.load());
}

core::StepCount DataPlane::optimizer_steps() const {
  return {state_->buckets[0]->optimizer_steps.load()};
}

}  // namespace troupe::actors
