#include <algorithm>
#include <numeric>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/ranges.hpp"
#include "core/errors.hpp"
#include "core/program/exchange.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

bool is_narrow_gather(const PlannedLaunch& launch, core::DType gradient) {
  return launch.moves_gradients() && launch.entry.operation == core::CollectiveKind::all_gather &&
         !core::is_also_sum(launch.entry) && launch.entry.wire != gradient &&
         launch.entry.counts.members() > 1;
}

}  // namespace

void DataPlane::State::prepare(const PrepareBucket& work) {
  auto& state = *buckets[work.bucket.value];
  const auto whole = plan.buckets[work.bucket.value].range;
  const bool has_lane = work.lane.value >= 0;
  if (compute && has_lane) accumulate->wait(state.computed.get());
  if (is_ordered() && has_lane) round_lane(work);
  const auto scaled = [&](gpu::BufferView gradients) {
    if (is_ordered() || scale() == 1.0F) return;
    gpu::scale({gradients, gradient_dtype(work.bucket)}, scale(), accumulate.get());
  };
  if (program.reduces_each_round()) {
    if (has_lane) scaled(arena.full_gradients(work.bucket, program.gradient_slot(work.bucket), whole));
    if (has_lane && is_ordered())
      add_slots(work.bucket, program.stacks(work.bucket, program.round_of(work.lane)).merge.steps);
    accumulate->record(state.prepared.get());
    return;
  }
  if (is_ordered()) {
    sum_lanes(work);
  } else if (work.last) {
    scaled(arena.gradients(work.bucket, 0, whole));
  }
  if (work.last) {
    accumulate->record(state.prepared.get());
    return;
  }
  accumulate->notify([this, work] {
    say(messages::Role::trainer, 0, messages::LaneMerged{work.step, work.lane, work.bucket});
  });
}

/// A rank's gradients of a lane are a leaf of the tree. A leaf is rounded before anything is added to it,
/// whether it is sent or not, so that leaves are the same on any mesh.
void DataPlane::State::round_lane(const PrepareBucket& work) {
  if (!tensor_class(work.bucket).has_narrow_wire()) return;
  const auto whole = plan.buckets[work.bucket.value].range;
  const int round = program.round_of(work.lane);
  for (int source = 0; source < program.sources(work.bucket); ++source) {
    const int slot = program.source_slot(work.bucket, round, source);
    const auto leaf = program.reduces_each_round()
                          ? arena.full_gradients(work.bucket, program.gradient_slot(work.bucket), whole, slot)
                          : arena.gradients(work.bucket, slot, whole);
    gpu::round_to(tensor_class(work.bucket).wire, {leaf, core::DType::f32}, accumulate.get());
  }
}

/// Adds the lane, and those of the other sources, to the rank's partial sums; after the last ones the sums of
/// all sources become one.
void DataPlane::State::sum_lanes(const PrepareBucket& work) {
  const auto& lanes = program.lanes_of(work.bucket);
  const int round = program.round_of(work.lane);
  const auto stacks = program.stacks(work.bucket, round);
  for (int source = 0; source < lanes.sources; ++source) {
    const auto block = lanes.source_blocks[static_cast<std::size_t>(source)];
    auto steps = core::merge_after({block.first + round}, block, plan.options.lanes);
    for (auto& step : steps) {
      step.destination += source * stacks.depth;
      step.source += source * stacks.depth;
    }
    add_slots(work.bucket, steps);
  }
  if (work.last) add_slots(work.bucket, stacks.merge.steps);
}

/// What was added is zero afterwards.
void DataPlane::State::add_slots(core::BucketIndex bucket, const std::vector<core::TreeStep>& steps) {
  const auto whole = plan.buckets[bucket.value].range;
  const auto memory = [&](int slot) {
    return program.reduces_each_round()
               ? arena.full_gradients(bucket, program.gradient_slot(bucket), whole, slot)
               : arena.gradients(bucket, slot, whole);
  };
  for (const auto& step : steps) {
    gpu::accumulate({memory(step.source), core::DType::f32}, {memory(step.destination), core::DType::f32},
                    accumulate.get());
    gpu::zero(memory(step.source), accumulate.get());
  }
}

DataPlane::State::Posted DataPlane::State::reduce(const PlannedLaunch& launch, Flight& flight) {
  const auto& entry = launch.entry;
  const auto bucket = *launch.bucket;
  auto& state = *buckets[bucket.value];
  auto& stream = stream_of(launch);
  const auto from = program.held(entry.from, bucket);
  const auto to = program.held(entry.to, bucket);
  const bool is_first = is_first_of_round(launch);
  const bool is_full = program.reduces_each_round() && entry.from != resting_gradients();
  const bool adds = rests(launch) && launch.round > 0;
  const auto memory = [&](core::ElementRange range) {
    return is_full ? arena.full_gradients(bucket, launch.slot, range) : arena.gradients(bucket, 0, range);
  };
  const bool sums_all = entry.operation == core::CollectiveKind::all_reduce;
  auto post_it =
      operation(sums_all ? gpu::OperationKind::all_reduce : gpu::OperationKind::reduce_scatter, entry.wire);
  post_it.input = memory(from);
  const std::size_t credit = adds ? exchanges++ % Arena::kScratchCredits : 0;
  if (adds) {
    post_it.output = arena.incoming(credit).subview(0, memory(to).bytes);
    stream->wait(credit_free[credit].get());
  } else {
    post_it.output = rests(launch) ? arena.gradients(bucket, 0, to) : memory(to);
  }
  stream->wait(is_first ? state.prepared.get() : state.reduced.get());
  // Without a lane, what is sent are the zeros that the last lane's reduction leaves.
  if (is_full) stream->wait(cleared(launch));
  const gpu::ConstElements arrived{post_it.output, entry.wire};
  TRY(post(launch, std::move(post_it), flight));
  stream->record(state.exchanged.get());
  update->wait(state.exchanged.get());
  if (adds) {
    gpu::accumulate(arrived, {arena.gradients(bucket, 0, to), entry.wire}, update.get());
    update->record(credit_free[credit].get());
  }
  return {};
}

/// What follows on "update" after a launch has brought gradients: it comes after the sums.
void DataPlane::State::end_reduction(const PlannedLaunch& launch, core::Step step, const Flight& flight) {
  const auto bucket = *launch.bucket;
  const auto own = program.held(launch.entry.to, bucket);
  const bool is_gathered = own != optimizer_range(bucket);
  if (launch.completes && is_gathered && !is_ordered() && tensor_class(bucket).has_narrow_wire()) {
    // What is measured is what all ranks will have.
    gpu::round_to(tensor_class(bucket).wire, {arena.gradients(bucket, 0, own), gradient_dtype(bucket)},
                  update.get());
  }
  if (launch.completes) measure(bucket);
  update->record(buckets[bucket.value]->reduced.get());
  if (!rests(launch)) return;
  if (program.rounds()[static_cast<std::size_t>(launch.round)]) {
    // The next lane adds to zeros; slots that were added to others are already cleared.
    const auto whole = plan.buckets[bucket.value].range;
    for (const int slot : summed_slots(bucket, launch.round)) {
      gpu::zero(arena.full_gradients(bucket, launch.slot, whole, slot), update.get());
    }
    update->record(cleared(launch));
  }
  const auto lane = program.lane_or_end(launch.round);
  update->notify([this, step, lane, bucket, operations = flight.operations] {
    // After a failure it is unknown whether the memory is free.
    for (const auto& operation : operations) {
      const auto result = operation->result();
      if (result && !*result) return;
    }
    say(messages::Role::trainer, 0, messages::LaneMerged{step, lane, bucket});
  });
}

/// Ranks that hold the same sums measure one part each, so that everything counts once.
void DataPlane::State::measure(core::BucketIndex bucket) {
  const core::Placements all_axes(resting_gradients().size(), core::Placement::flat_shard);
  const auto part = program.held(all_axes, bucket);
  gpu::zero(arena.squares(bucket), update.get());
  for (const auto& counted : counted_in_norms(bucket, part)) {
    gpu::add_squares({arena.gradients(bucket, 0, counted), gradient_dtype(bucket)}, arena.squares(bucket),
                     update.get());
  }
}

/// Leaves out parameters that are counted by other ranks that have the same values. Padding is zero.
std::vector<core::ElementRange> DataPlane::State::counted_in_norms(core::BucketIndex bucket,
                                                                   core::ElementRange part) const {
  const auto& parameters = plan.buckets[bucket.value].parameters;
  const auto counts = [&](core::ParameterIndex p) { return plan.counts_in_norms(p, rank()); };
  if (std::all_of(parameters.begin(), parameters.end(), counts)) return {part};
  std::vector<core::ElementRange> counted;
  for (const auto parameter : parameters) {
    const auto& whole = plan.parameters[parameter.value].range;
    const core::ElementRange own{std::max(whole.start, part.start), std::min(whole.end, part.end)};
    if (own.size() > 0 && counts(parameter)) counted.push_back(own);
  }
  return counted;
}

/// What this rank owns of the bucket's gradients, with all lanes included, becomes the sum over the ranks
/// that own the same part.
DataPlane::State::Posted DataPlane::State::sum_beyond_axes(core::PlanEntryIndex index, Flight& flight) {
  const auto& launch = program.launch(index);
  const auto& entry = launch.entry;
  const auto bucket = *launch.bucket;
  auto& state = *buckets[bucket.value];
  auto& stream = stream_of(launch);
  const auto own = program.held(entry.from, bucket);
  stream->wait(state.reduced.get());
  if (!is_ordered()) {
    auto post_it = operation(gpu::OperationKind::all_reduce, entry.wire);
    post_it.input = post_it.output = arena.gradients(bucket, 0, own);
    TRY(post(launch, std::move(post_it), flight));
    stream->record(state.exchanged.get());
    update->wait(state.exchanged.get());
    return {};
  }
  const auto members = static_cast<std::size_t>(entry.counts.members());
  const auto& sum_of = sums[static_cast<std::size_t>(index.value)].front();
  const std::int64_t most = entry.chunk > 0 ? entry.chunk : own.size();
  for (auto first = own.start; first < own.end; first += most) {
    const core::ElementRange range{first, std::min(first + most, own.end)};
    const std::size_t credit = exchanges++ % Arena::kScratchCredits;
    const auto bytes = elements(range) * sizeof(float);
    const auto arrived = arena.incoming(credit).subview(0, members * bytes);
    auto post_it = operation(gpu::OperationKind::all_gather, entry.wire);
    post_it.input = arena.gradients(bucket, 0, range);
    post_it.output = arrived;
    stream->wait(credit_free[credit].get());
    TRY(post(launch, std::move(post_it), flight));
    stream->record(state.exchanged.get());
    update->wait(state.exchanged.get());
    gpu::TreeSum sum;
    for (const std::size_t member : sum_of.terms)
      sum.slots.emplace_back(arrived.subview(member * bytes, bytes), core::DType::f32);
    sum.steps = sum_of.steps;
    sum.factor = scale();
    sum.output = {arena.gradients(bucket, 0, range), core::DType::f32};
    gpu::tree_sum(std::move(sum), update.get());
    update->record(credit_free[credit].get());
  }
  return {};
}

DataPlane::State::Posted DataPlane::State::gather_gradients(const PlannedLaunch& launch, Flight& flight) {
  const auto& entry = launch.entry;
  const auto bucket = *launch.bucket;
  auto& stream = stream_of(launch);
  stream->wait(buckets[bucket.value]->reduced.get());
  if (is_narrow_gather(launch, gradient_dtype(bucket))) {
    for (std::int64_t chunk = 0; chunk < core::chunks_of(entry); ++chunk)
      TRY(gather_narrow(launch, chunk, flight));
    return {};
  }
  auto post_it = operation(gpu::OperationKind::all_gather, gradient_dtype(bucket));
  for (std::int64_t member = 0; member < entry.counts.members(); ++member) {
    post_it.input_counts.push_back(static_cast<std::size_t>(entry.counts.of(member)));
  }
  post_it.input = arena.gradients(bucket, 0, program.held(entry.from, bucket));
  post_it.output = arena.gradients(bucket, 0, program.held(entry.to, bucket));
  return post(launch, std::move(post_it), flight);
}

/// Gathers a chunk of each member's sums, sent in the wire's dtype.
DataPlane::State::Posted DataPlane::State::gather_narrow(const PlannedLaunch& launch, std::int64_t chunk,
                                                         Flight& flight) {
  const auto bucket = *launch.bucket;
  const auto wire = launch.entry.wire;
  const auto whole = program.held(launch.entry.to, bucket);
  auto& stream = stream_of(launch);
  auto& state = *buckets[bucket.value];
  const auto ranges = core::chunk_ranges(launch.entry, chunk);
  const auto place = [&](core::ElementRange range) {
    return gpu::Elements{arena.gradients(bucket, 0, moved(range, whole.start)), gradient_dtype(bucket)};
  };
  auto post_it = operation(gpu::OperationKind::all_gather, wire);
  std::vector<gpu::Elements> gathered;
  for (const auto& range : ranges) {
    post_it.input_counts.push_back(elements(range));
    gathered.push_back(place(range));
  }
  const auto own = place(ranges[static_cast<std::size_t>(launch.place)]);
  const std::size_t credit = exchanges++ % Arena::kScratchCredits;
  const auto sent = arena.outgoing(credit).subview(0, own.count() * core::size_of(wire));
  const std::size_t all =
      std::accumulate(post_it.input_counts.begin(), post_it.input_counts.end(), std::size_t{0});
  const auto arrived = arena.incoming(credit).subview(0, all * core::size_of(wire));
  stream->wait(credit_free[credit].get());
  gpu::cast(own, {sent, wire}, stream.get());
  post_it.input = sent;
  post_it.output = arrived;
  TRY(post(launch, std::move(post_it), flight));
  stream->record(state.exchanged.get());
  update->wait(state.exchanged.get());
  gpu::unpack({arrived, wire}, std::move(gathered), update.get());
  update->record(credit_free[credit].get());
  return {};
}

}  // namespace troupe::actors
