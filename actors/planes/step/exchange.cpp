#include <algorithm>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/ranges.hpp"
#include "core/errors.hpp"
#include "core/program/exchange.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

std::vector<std::size_t> sizes(const std::vector<std::int64_t>& counts) {
  return {counts.begin(), counts.end()};
}

/// One term, which is where the sum belongs.
bool is_in_place(const gpu::TreeSum& sum) {
  return sum.slots.size() == 1 && sum.factor == 1.0F && sum.slots[0].view.data == sum.output.view.data &&
         sum.slots[0].dtype == sum.output.dtype;
}

std::size_t total(const std::vector<std::int64_t>& counts) {
  std::size_t sum = 0;
  for (const auto count : counts) sum += static_cast<std::size_t>(count);
  return sum;
}

}  // namespace

bool DataPlane::State::is_first_of_round(const PlannedLaunch& launch) const {
  return std::all_of(launch.entry.from.begin(), launch.entry.from.end(),
                     [](core::Placement p) { return p == core::Placement::partial; });
}

bool DataPlane::State::rests(const PlannedLaunch& launch) const {
  return program.reduces_each_round() && launch.entry.from != resting_gradients() &&
         launch.entry.to == resting_gradients();
}

std::vector<gpu::BufferView> DataPlane::State::rested(const PlannedLaunch& launch, core::ElementRange range) {
  std::vector<gpu::BufferView> found;
  if (!rests(launch)) return found;
  const auto bucket = *launch.bucket;
  if (!is_ordered()) {
    if (launch.round > 0) found.push_back(arena.gradients(bucket, 0, range));
    return found;
  }
  const auto before = core::roots_of(program.before(bucket, launch.round), program.tree());
  for (const int slot : program.resting(bucket).slots_of(before))
    found.push_back(arena.gradients(bucket, slot, range));
  return found;
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

/// The merges of every exchange, as sums that each produce one root.
void DataPlane::State::plan_sums() {
  sums.resize(program.launches().size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto& launch = program.launches()[i];
    if (core::is_also_sum(launch.entry)) sums[i].push_back(sum_of_members(launch.entry.counts.members()));
    if (launch.entry.operation != core::CollectiveKind::all_to_all) continue;
    if (!is_ordered()) {
      const auto before = rests(launch) && launch.round > 0 ? 1 : 0;
      sums[i].push_back(sum_of_members(before + launch.entry.counts.members()));
      continue;
    }
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
  if (!is_ordered()) {
    const bool is_full = program.reduces_each_round() && entry.from != resting_gradients();
    return {is_full ? arena.full_gradients(bucket, launch.slot, from) : arena.gradients(bucket, 0, from)};
  }
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
  const auto roots = roots_of(launch);
  stream->wait(is_first ? state.prepared.get() : state.reduced.get());
  // As in reduce(). In `ordered` numerics nothing is sent without a lane.
  if (is_first && program.reduces_each_round() && !roots.empty()) stream->wait(cleared(launch));
  // Sums that are carried were sent on before this stream reaches the exchange after the next one, which
  // "update" waits for before it overwrites them.
  if (!launch.last_reduction && !rests(launch)) state.carry = carries++ % Arena::kScratchCredits;
  for (std::int64_t chunk = 0; chunk < core::chunks_of(launch.entry); ++chunk) {
    TRY(exchange_chunk(index, roots, chunk, flight));
  }
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
  std::vector<gpu::ConstElements> arrived;
  const std::size_t credit = exchanges++ % Arena::kScratchCredits;
  if (chunk.ranges.size() == 1) {
    for (const auto& root : roots) arrived.emplace_back(part(root, own), core::DType::f32);
  } else {
    const auto wire = launch.entry.wire;
    const bool is_whole = roots.size() == 1 && core::chunks_of(launch.entry) == 1;
    stream->wait(credit_free[credit].get());
    auto post_it = operation(gpu::OperationKind::all_to_all, wire);
    post_it.input_counts = sizes(chunk.input_counts);
    post_it.output_counts = sizes(chunk.output_counts);
    if (is_whole && wire == core::DType::f32) {
      post_it.input = roots.front();
    } else if (!roots.empty()) {
      // What this rank sends, in the order of the receivers: their part of each root.
      std::vector<gpu::ConstElements> sent;
      if (is_whole) sent.emplace_back(roots.front(), core::DType::f32);
      for (std::size_t i = 0; !is_whole && i < chunk.ranges.size(); ++i) {
        for (const auto& root : roots) sent.emplace_back(part(root, chunk.ranges[i]), core::DType::f32);
      }
      const auto packed = arena.outgoing(credit).subview(0, total(chunk.input_counts) * core::size_of(wire));
      gpu::pack(std::move(sent), {packed, wire}, stream.get());
      post_it.input = packed;
    }
    post_it.output = arena.incoming(credit).subview(0, total(chunk.output_counts) * core::size_of(wire));
    const auto bytes = elements(own) * core::size_of(wire);
    for (std::size_t at = 0; at + bytes <= post_it.output.bytes && bytes > 0; at += bytes) {
      arrived.emplace_back(post_it.output.subview(at, bytes), wire);
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

/// `range` is in the bucket's buffer, within the part that this rank holds when the exchange has ended.
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
                                 std::vector<gpu::ConstElements> arrived) {
  const auto& launch = program.launch(index);
  std::vector<gpu::ConstElements> terms;
  for (const auto& sum : rested(launch, range)) terms.emplace_back(sum, core::DType::f32);
  terms.insert(terms.end(), arrived.begin(), arrived.end());
  const auto& roots = sums[static_cast<std::size_t>(index.value)];
  // A sum never includes what is below it in its stack, so whatever it overwrites was added before.
  for (std::size_t root = 0; root < roots.size(); ++root) {
    const gpu::Elements output{destination_of(launch, root, roots[root].slot, range), core::DType::f32};
    if (!is_ordered()) {
      add_in_order(roots[root], terms, output);
      continue;
    }
    gpu::TreeSum sum;
    for (const auto term : roots[root].terms) sum.slots.push_back(terms[term]);
    sum.steps = roots[root].steps;
    sum.factor = launch.completes ? scale() : 1.0F;
    sum.output = output;
    if (!is_in_place(sum)) gpu::tree_sum(std::move(sum), update.get());
  }
}

/// One term after the other, a few in each pass over the output: a kernel's fast memory holds no more of
/// them.
void DataPlane::State::add_in_order(const RootSum& sum, std::span<const gpu::ConstElements> terms,
                                    gpu::Elements output) {
  constexpr std::size_t kTerms = 16;
  for (std::size_t next = 0; next < terms.size();) {
    gpu::TreeSum pass;
    if (next > 0) pass.slots.emplace_back(output);
    while (next < terms.size() && pass.slots.size() < kTerms) pass.slots.push_back(terms[next++]);
    pass.steps = std::span(sum.steps).first(pass.slots.size() - 1);
    pass.output = output;
    gpu::tree_sum(std::move(pass), update.get());
  }
}

}  // namespace troupe::actors
