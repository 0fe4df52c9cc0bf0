#include <algorithm>

#include "actors/planes/step/data_plane_state.hpp"
#include "core/errors.hpp"
#include "core/program/exchange.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

std::size_t elements(core::ElementRange range) {
  return static_cast<std::size_t>(range.size());
}

core::ElementRange moved(core::ElementRange range, std::int64_t by) {
  return {range.start + by, range.end + by};
}

std::vector<std::size_t> sizes(const std::vector<std::int64_t>& counts) {
  return {counts.begin(), counts.end()};
}

std::size_t total(const std::vector<std::int64_t>& counts) {
  std::size_t sum = 0;
  for (const auto count : counts) sum += static_cast<std::size_t>(count);
  return sum;
}

}  // namespace

void DataPlane::State::prepare(const PrepareBucket& work) {
  auto& state = *buckets[work.bucket.value];
  const auto whole = plan.buckets[work.bucket.value].range;
  const bool has_lane = work.lane.value >= 0;
  if (compute && has_lane) accumulate->wait(state.computed.get());
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

/// The lane joins the rank's partial sums, and so do those of the other sources; with the last ones the sums
/// of all sources become one.
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

bool DataPlane::State::is_first_of_round(const PlannedLaunch& launch) const {
  return std::all_of(launch.entry.from.begin(), launch.entry.from.end(),
                     [](core::Placement p) { return p == core::Placement::partial; });
}

bool DataPlane::State::rests(const PlannedLaunch& launch) const {
  return program.reduces_each_round() && launch.entry.from != resting_gradients() &&
         launch.entry.to == resting_gradients();
}

/// In the order of members.
DataPlane::State::RootSum DataPlane::State::sum_of_members(std::int64_t members) {
  RootSum sum;
  for (int member = 0; member < members; ++member) {
    sum.terms.push_back(static_cast<std::size_t>(member));
    if (member > 0) sum.steps.push_back({0, member});
  }
  return sum;
}

/// The merges of every exchange, as sums that each leave one root.
void DataPlane::State::plan_sums() {
  sums.resize(program.launches().size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto& launch = program.launches()[i];
    if (core::is_also_sum(launch.entry)) sums[i].push_back(sum_of_members(launch.entry.counts.members()));
    if (launch.entry.operation != core::CollectiveKind::all_to_all) continue;
    std::vector<core::LaneRange> blocks;
    const auto add = [&](const std::vector<core::LaneRange>& more) {
      blocks.insert(blocks.end(), more.begin(), more.end());
    };
    if (rests(launch)) add(program.before(*launch.bucket, launch.round));
    for (int member = 0; member < launch.entry.counts.members(); ++member)
      add(program.leaves_of(launch, member));
    const auto [order, merge, roots] = core::sort_and_merge(blocks, program.tree());
    const auto slots = program.resting(*launch.bucket).slots_of(roots);
    for (std::size_t root = 0; root < roots.size(); ++root) {
      RootSum sum{.slot = slots[root]};
      const auto first = merge.roots[root];
      const auto end = root + 1 < roots.size() ? merge.roots[root + 1] : static_cast<int>(order.size());
      for (int place = first; place < end; ++place)
        sum.terms.push_back(static_cast<std::size_t>(order[static_cast<std::size_t>(place)]));
      for (const auto& [destination, source] : merge.steps) {
        if (destination >= first && destination < end)
          sum.steps.push_back({destination - first, source - first});
      }
      sums[i].push_back(std::move(sum));
    }
    CHECK(!launch.last_reduction || sums[i].size() == 1, "the last exchange leaves the sum over all lanes");
  }
}

std::vector<gpu::BufferView> DataPlane::State::roots_of(const PlannedLaunch& launch) {
  const auto& entry = launch.entry;
  const auto bucket = *launch.bucket;
  const auto from = program.held(entry.from, bucket);
  const auto held = core::roots_of(program.leaves_of(launch, launch.place), program.tree());
  const auto count = held.size();
  std::vector<gpu::BufferView> roots;
  if (is_first_of_round(launch)) {
    if (count == 0) return roots;
    for (const int slot : summed_slots(bucket, launch.round)) {
      roots.push_back(program.reduces_each_round() ? arena.full_gradients(bucket, launch.slot, from, slot)
                                                   : arena.gradients(bucket, slot, from));
    }
    CHECK(roots.size() == count, "a rank has summed as far as its lanes go");
    return roots;
  }
  if (entry.from == resting_gradients()) {
    for (const int slot : program.resting(bucket).slots_of(held))
      roots.push_back(arena.gradients(bucket, slot, from));
    return roots;
  }
  const auto carried = arena.carry(buckets[bucket.value]->carry);
  const auto bytes = elements(from) * sizeof(float);
  for (std::size_t i = 0; i < count; ++i) {
    roots.push_back(i == 0 ? arena.gradients(bucket, 0, from) : carried.subview((i - 1) * bytes, bytes));
  }
  return roots;
}

DataPlane::State::Posted DataPlane::State::exchange(core::PlanEntryIndex index, Flight& flight) {
  const auto& launch = program.launch(index);
  auto& state = *buckets[launch.bucket->value];
  auto& stream = stream_of(launch);
  const bool is_first = is_first_of_round(launch);
  const bool takes_carried = !is_first && launch.entry.from != resting_gradients();
  const auto roots = roots_of(launch);
  stream->wait(is_first ? state.prepared.get() : state.reduced.get());
  const auto carried_before = state.carry;
  if (!launch.last_reduction && !rests(launch)) {
    state.carry = carries++ % Arena::kScratchCredits;
    update->wait(carry_free[state.carry].get());
  }
  for (std::int64_t chunk = 0; chunk < core::chunks_of(launch.entry); ++chunk) {
    TRY(exchange_chunk(index, roots, chunk, flight));
  }
  if (takes_carried) stream->record(carry_free[carried_before].get());
  return {};
}

DataPlane::State::Posted DataPlane::State::exchange_chunk(core::PlanEntryIndex index,
                                                          const std::vector<gpu::BufferView>& roots,
                                                          std::int64_t number, Flight& flight) {
  const auto& launch = program.launch(index);
  const auto chunk = core::exchange_chunk(launch.entry, launch.place, number);
  const auto own = chunk.ranges[static_cast<std::size_t>(launch.place)];
  auto& stream = stream_of(launch);
  auto& state = *buckets[launch.bucket->value];
  const auto part = [](gpu::BufferView root, core::ElementRange range) {
    return root.subview(static_cast<std::size_t>(range.start) * sizeof(float),
                        elements(range) * sizeof(float));
  };
  std::vector<gpu::ConstBufferView> arrived;
  const std::size_t credit = exchanges++ % Arena::kScratchCredits;
  if (chunk.ranges.size() == 1) {
    for (const auto& root : roots) arrived.push_back(part(root, own));
  } else {
    stream->wait(credit_free[credit].get());
    auto post_it = operation(gpu::OperationKind::all_to_all, core::DType::f32);
    post_it.input_counts = sizes(chunk.input_counts);
    post_it.output_counts = sizes(chunk.output_counts);
    if (roots.size() == 1 && core::chunks_of(launch.entry) == 1) {
      post_it.input = roots.front();
    } else if (!roots.empty()) {
      // What this rank sends, in the order of the receivers: of each root the part that is theirs.
      std::vector<gpu::ConstBufferView> sent;
      for (const auto& range : chunk.ranges) {
        for (const auto& root : roots) sent.push_back(part(root, range));
      }
      const auto packed = arena.outgoing(credit).subview(0, total(chunk.input_counts) * sizeof(float));
      gpu::pack(std::move(sent), packed, stream.get());
      post_it.input = packed;
    }
    post_it.output = arena.incoming(credit).subview(0, total(chunk.output_counts) * sizeof(float));
    const auto bytes = elements(own) * sizeof(float);
    for (std::size_t at = 0; at + bytes <= post_it.output.bytes && bytes > 0; at += bytes) {
      arrived.push_back(post_it.output.subview(at, bytes));
    }
    TRY(post(launch, std::move(post_it), flight));
  }
  stream->record(state.exchanged.get());
  update->wait(state.exchanged.get());
  const auto from = program.held(launch.entry.from, *launch.bucket);
  if (own.size() > 0) add_roots(index, moved(own, from.start), std::move(arrived));
  update->record(credit_free[credit].get());
  return {};
}

/// `range` is of the bucket's buffer, and lies in the part that this rank holds when the exchange is over.
gpu::BufferView DataPlane::State::destination_of(const PlannedLaunch& launch, std::size_t root, int slot,
                                                 core::ElementRange range) {
  if (rests(launch)) return arena.gradients(*launch.bucket, slot, range);
  if (root == 0) return arena.gradients(*launch.bucket, 0, range);
  const auto part = program.held(launch.entry.to, *launch.bucket);
  const auto first = (root - 1) * elements(part) + static_cast<std::size_t>(range.start - part.start);
  return arena.carry(buckets[launch.bucket->value]->carry)
      .subview(first * sizeof(float), elements(range) * sizeof(float));
}

void DataPlane::State::add_roots(core::PlanEntryIndex index, core::ElementRange range,
                                 std::vector<gpu::ConstBufferView> arrived) {
  const auto& launch = program.launch(index);
  std::vector<gpu::ConstBufferView> terms;
  if (rests(launch)) {
    const auto bucket = *launch.bucket;
    const auto before = core::roots_of(program.before(bucket, launch.round), program.tree());
    for (const int slot : program.resting(bucket).slots_of(before))
      terms.push_back(arena.gradients(bucket, slot, range));
  }
  terms.insert(terms.end(), arrived.begin(), arrived.end());
  const auto& roots = sums[static_cast<std::size_t>(index.value)];
  // A sum never takes what lies below it in its stack, so what it overwrites was added before.
  for (std::size_t root = 0; root < roots.size(); ++root) {
    gpu::TreeSum sum;
    for (const auto term : roots[root].terms) sum.slots.push_back(terms[term]);
    sum.steps = roots[root].steps;
    sum.factor = launch.completes ? scale() : 1.0F;
    sum.output = {destination_of(launch, root, roots[root].slot, range), core::DType::f32};
    gpu::tree_sum(std::move(sum), update.get());
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

/// What follows on "update" when a launch has brought gradients: it comes after the sums.
void DataPlane::State::end_reduction(const PlannedLaunch& launch, core::Step step, const Flight& flight) {
  const auto bucket = *launch.bucket;
  if (launch.completes) measure(bucket);
  update->record(buckets[bucket.value]->reduced.get());
  if (!rests(launch)) return;
  const auto lane = program.rounds()[static_cast<std::size_t>(launch.round)];
  if (!lane) return;
  // The next lane adds to zeros; what was added to other slots is cleared.
  const auto whole = plan.buckets[bucket.value].range;
  for (const int slot : summed_slots(bucket, launch.round)) {
    gpu::zero(arena.full_gradients(bucket, launch.slot, whole, slot), update.get());
  }
  update->notify([this, step, lane = *lane, bucket, operations = flight.operations] {
    // After a failure nobody knows that the memory is free.
    for (const auto& operation : operations) {
      const auto result = operation->result();
      if (result && !*result) return;
    }
    say(messages::Role::trainer, 0, messages::LaneMerged{step, lane, bucket});
  });
}

/// Ranks that hold the same sums each measure their part, so that everything counts once.
void DataPlane::State::measure(core::BucketIndex bucket) {
  const core::Placements all_axes(resting_gradients().size(), core::Placement::flat_shard);
  const auto part = program.held(all_axes, bucket);
  gpu::zero(arena.squares(bucket), update.get());
  for (const auto& counted : counted_in_norms(bucket, part)) {
    gpu::add_squares({arena.gradients(bucket, 0, counted), gradient_dtype(bucket)}, arena.squares(bucket),
                     update.get());
  }
}

/// Without the parameters that other ranks count which have the same values of them. Padding is zero.
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

/// What this rank owns of the bucket's gradients, whose lanes are all in it, becomes the sum over the ranks
/// that own the same of it.
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
    for (const std::size_t member : sum_of.terms) sum.slots.push_back(arrived.subview(member * bytes, bytes));
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
  auto post_it = operation(gpu::OperationKind::all_gather, gradient_dtype(bucket));
  for (std::int64_t member = 0; member < entry.counts.members(); ++member) {
    post_it.input_counts.push_back(static_cast<std::size_t>(entry.counts.of(member)));
  }
  post_it.input = arena.gradients(bucket, 0, program.held(entry.from, bucket));
  post_it.output = arena.gradients(bucket, 0, program.held(entry.to, bucket));
  auto& stream = stream_of(launch);
  stream->wait(buckets[bucket.value]->reduced.get());
  TRY(post(launch, std::move(post_it), flight));
  stream->record(buckets[bucket.value]->exchanged.get());
  return {};
}

}  // namespace troupe::actors
