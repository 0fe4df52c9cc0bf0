#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/optimizer_step.hpp"
#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

RankProgram program_of(const TrainingPlan& plan, const DataPlane::Options& options) {
  return options.program ? RankProgram(plan, options.rank, *options.program)
                         : RankProgram(plan, options.rank);
}

}  // namespace

DataPlane::State::State(gpu::Device& on, const TrainingPlan& planned, Options given)
    : device(on), plan(planned), options(std::move(given)), program(program_of(planned, options)) {
  if (!options.launched) options.launched = [](core::Step, core::PlanEntryIndex) {};
}

core::Result<void> DataPlane::State::open() {
  arena = TRY(Arena::create(device, plan, program, options.collectives));
  accumulate = TRY(device.create_stream({"accumulate", 0}));
  communication.push_back(TRY(device.create_stream({"communication", 1})));
  CHECK(program.program().streams == 1, "updates come after the verdict, and so after all of the one stream");
  update = TRY(device.create_stream({"update", 0}));
  verdict_ready = TRY(device.create_event());
  for (auto& event : credit_free) event = TRY(device.create_event());
  slot_cleared.resize(
      static_cast<std::size_t>(program.program().credits[static_cast<std::size_t>(core::Pool::gradients)]));
  for (auto& event : slot_cleared) event = TRY(device.create_event());
  buckets.resize(plan.buckets.size());
  for (auto& bucket : buckets) {
    bucket = std::make_unique<Bucket>();
    for (auto* event :
         {&bucket->prepared, &bucket->exchanged, &bucket->reduced, &bucket->cleared, &bucket->updated}) {
      *event = TRY(device.create_event());
    }
  }
  const auto slots = program.program().credits[static_cast<std::size_t>(core::Pool::parameters)];
  for (int slot = 0; slot < slots; ++slot) released.push_back(TRY(device.create_event()));
  const core::Placements all_axes(plan.inputs.placements.gradients.size(), core::Placement::flat_shard);
  for (const auto bucket : plan.buckets.indices())
    measured.push_back(counted_in_norms(bucket, program.held(all_axes, bucket)));
#ifdef NDEBUG
  poisons = device.kind() == gpu::DeviceKind::simulated;
#else
  poisons = device.is_host_memory();
#endif
  return {};
}

float DataPlane::State::scale() const {
  if (!plan.options.average) return 1.0F;
  return 1.0F / static_cast<float>(plan.options.lanes * plan.options.microbatches);
}

/// Collectives that average divide by their members.
float DataPlane::State::scale_before(core::BucketIndex bucket) const {
  if (!plan.options.average_in_collective) return scale();
  const auto& sizes = plan.inputs.domains[plan.domain_of(bucket)].sizes;
  const int members = std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>());
  return static_cast<float>(members) / static_cast<float>(plan.options.lanes * plan.options.microbatches);
}

void DataPlane::State::adopt(core::BucketIndex bucket) {
  adopt(bucket, optimizer_range(bucket));
}

void DataPlane::State::adopt(core::BucketIndex bucket, core::ElementRange part) {
  // The trainer's kernels may have written the values.
  if (compute) {
    compute->record(read.get());
    update->wait(read.get());
  }
  if (arena.has_own_master(bucket)) {
    const auto first = static_cast<std::size_t>(part.start - optimizer_range(bucket).start);
    const gpu::Elements master{arena.master(bucket), core::DType::f32};
    const auto dtype = plan.buffers[plan.buckets[bucket].buffer].dtype;
    gpu::cast({arena.parameters(bucket, part), dtype},
              master.part(first, static_cast<std::size_t>(part.size())), update.get());
  }
  // A gather or a save that comes before the first update reads what is adopted here.
  update->record(buckets[bucket]->updated.get());
}

std::vector<DataPlane::State::Segment> DataPlane::State::segments(core::BucketIndex bucket,
                                                                  core::ElementRange range) const {
  const auto& place = plan.buckets[bucket];
  std::vector<Segment> found;
  for (auto parameter : place.parameters) {
    const auto& whole = plan.parameters[parameter].range;
    core::ElementRange part{std::max(whole.start, range.start), std::min(whole.end, range.end)};
    if (part.size() <= 0) continue;
    found.push_back({part, part.start - range.start, parameter});
  }
  return found;
}

void DataPlane::State::step_segment(core::BucketIndex bucket, const Segment& segment, const StepShard& work,
                                    std::int64_t step) {
  const auto& place = plan.buckets[bucket];
  const auto& buffer = plan.buffers[place.buffer];
  auto part = [&](gpu::BufferView whole) {
    return whole.bytes == 0
               ? whole
               : whole.subview(static_cast<std::size_t>(segment.in_shard) * sizeof(float),
                               static_cast<std::size_t>(segment.in_buffer.size()) * sizeof(float));
  };
  gpu::ParameterStep parameter;
  parameter.gradient = {arena.gradients(bucket, 0, segment.in_buffer), buffer.gradient_dtype};
  parameter.gradient_factor = static_cast<float>(work.gradient_factor);
  if (clears_with_update(bucket)) parameter.cleared = arena.gradients(bucket, 0, segment.in_buffer);
  parameter.master = part(arena.master(bucket));
  // Blocks are rounded from main values after all of them are stepped.
  const bool rounds_later = has_blocks(bucket);
  if (arena.has_own_master(bucket) && !rounds_later) {
    parameter.parameter = {arena.parameters(bucket, segment.in_buffer), buffer.dtype};
  }
  std::vector<gpu::BufferView> states;
  for (std::size_t i = 0; i < buffer.states.size(); ++i)
    states.push_back(part(arena.optimizer_state(bucket, i)));
  const auto& spec = plan.specs[segment.parameter];
  if (!steps_missed.empty()) step -= steps_missed[segment.parameter.value];
  {
    const auto scratch = arena.optimizer_scratch();
    std::unique_lock lock(scratch_mutex, std::defer_lock);
    if (scratch.bytes > 0) lock.lock();
    step_optimizer({plan.group_of(segment.parameter), spec, work.learning_rate, step}, parameter, states,
                   scratch, update.get());
  }
  if (rounds_later) {
    gpu::round_to_mx(*tensor_class(bucket).gathered, {parameter.master, core::DType::f32},
                     {arena.parameters(bucket, segment.in_buffer), buffer.dtype}, update.get());
  }
}

/// Whether the optimizer leaves the gradients that it reads as zeros, while they are in the cache.
bool DataPlane::State::clears_with_update(core::BucketIndex bucket) const {
  if (program.reduces_each_round()) return false;
  const auto slots = program.summed_slots(bucket, 0);
  return std::find(slots.begin(), slots.end(), 0) != slots.end();
}

/// Slots other than the summed ones were cleared when they were merged, and full gradients when they were
/// reduced. What each round reduces is overwritten, not added to. But a step may be refused because gradients
/// came again after that: then everything is cleared. Memory that buckets share is cleared by the first of
/// them, since none has gradients of the next step before its own shard was stepped.
void DataPlane::State::clear_gradients(const StepShard& work) {
  const auto whole = plan.buckets[work.bucket].range;
  if (!program.reduces_each_round()) {
    const auto clear = [&](int slot, core::ElementRange range) {
      if (range.size() > 0) gpu::zero(arena.gradients(work.bucket, slot, range), update.get());
    };
    if (work.commit) {
      for (const int slot : program.summed_slots(work.bucket, 0)) {
        if (slot > 0) clear(slot, whole);
      }
      if (!clears_with_update(work.bucket)) return;
      auto next = whole.start;
      for (const auto& segment : segments(work.bucket, optimizer_range(work.bucket))) {
        clear(0, {next, segment.in_buffer.start});
        next = segment.in_buffer.end;
      }
      clear(0, {next, whole.end});
    } else {
      for (int slot = 0; slot < arena.slots(work.bucket); ++slot) clear(slot, whole);
    }
    return;
  }
  if (work.commit) return;
  std::lock_guard lock(refused_mutex);
  if (std::exchange(refused, work.step) == work.step) return;
  for (const auto memory : arena.added_to()) {
    if (memory.bytes > 0) gpu::zero(memory, update.get());
  }
}

void DataPlane::State::carry_out(const StepShard& work) {
  auto& state = *buckets[work.bucket];
  if (work.commit) {
    auto step = state.optimizer_steps.load() + 1;
    for (const auto& segment : segments(work.bucket, optimizer_range(work.bucket)))
      step_segment(work.bucket, segment, work, step);
    state.optimizer_steps = step;
  }
  clear_gradients(work);
  update->record(state.updated.get());
  state.stepped = work.step.value;
}

void DataPlane::State::step_shard(const StepShard& work) {
  auto& state = *buckets[work.bucket];
  // The step was decided by the verdict, which came after all of its collectives on their stream.
  if (compute) update->wait(read.get());
  // ParameterShards enqueue concurrently, so the tasks of two buckets may interleave.
  update->notify([this, &state] {
    state.update_began = device.now();
    updating.begin(state.update_began);
  });
  carry_out(work);
  update->notify([this, &state, work] {
    auto now = device.now();
    updating.end(now);
    if (options.tracer) {
      trace_span("update", fmt::format("optimizer bucket {}", work.bucket.value), state.update_began, now,
                 bucket_flow(work.step, work.bucket));
    }
    say(messages::Role::parameter_shard, work.bucket.value, messages::ShardStepped{work.step, work.bucket});
  });
}

}  // namespace troupe::actors
