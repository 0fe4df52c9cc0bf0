#include <algorithm>
#include <array>
#include <utility>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/ranges.hpp"
#include "core/errors.hpp"
#include "core/program/exchange.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

gpu::PartCounts part_counts(const core::Counts& counts) {
  if (counts.runs.size() == 1) {
    return gpu::PartCounts::even(static_cast<std::size_t>(counts.runs[0].elements),
                                 static_cast<std::size_t>(counts.runs[0].members));
  }
  const auto each = counts.each();
  return std::vector<std::size_t>(each.begin(), each.end());
}

/// A range of one of the rank's sums, which are f32.
gpu::BufferView part_of(gpu::BufferView sum, core::ElementRange range) {
  return sum.subview(static_cast<std::size_t>(range.start) * sizeof(float), elements(range) * sizeof(float));
}

}  // namespace

/// What each action does, in the order of core::Action.
const std::array<DataPlane::State::Act, core::kActions> DataPlane::State::kActs{
    &State::wait,          &State::record,        &State::reserve,       &State::carry,
    &State::note,          &State::count,         &State::cut_sums,      &State::cut_part,
    &State::cut_gather,    &State::cut_exchange,  &State::send,          &State::pack_part,
    &State::pack_blocks,   &State::keep,          &State::post,          &State::post_blocks,
    &State::accumulate_in, &State::add_tree,      &State::add_in_order,  &State::add_members,
    &State::unpack,        &State::unpack_blocks, &State::unpack_others, &State::round_sums,
    &State::measure,       &State::clear,         &State::write_verdict, &State::read_verdict,
    &State::merged};

gpu::EventView DataPlane::State::event_of(core::Mark mark, const Job& job) const {
  switch (mark) {
    case core::Mark::prepared:
      return buckets[job.bucket]->prepared.get();
    case core::Mark::exchanged:
      return buckets[job.bucket]->exchanged.get();
    case core::Mark::reduced:
      return buckets[job.bucket]->reduced.get();
    case core::Mark::cleared:
      return cleared(job.launch);
    case core::Mark::updated:
      return buckets[job.bucket]->updated.get();
    case core::Mark::released:
      return released.at(static_cast<std::size_t>(job.launch.slot)).get();
    case core::Mark::staged:
      return credit_free[job.credit].get();
    case core::Mark::measured:
      break;
  }
  return verdict_ready.get();
}

gpu::BufferView DataPlane::State::memory_of(core::Place place, core::ElementRange range, const Job& job) {
  switch (place) {
    case core::Place::kept_parameters:
      return arena.parameters(job.bucket, range);
    case core::Place::full_parameters:
      return arena.gathered(job.bucket, job.launch.slot, range);
    case core::Place::sums:
      return arena.gradients(job.bucket, 0, range);
    case core::Place::full_gradients:
      return arena.full_gradients(job.bucket, job.launch.slot, range);
    case core::Place::sent:
      return job.sent;
    case core::Place::arrived:
      return job.arrived;
    case core::Place::verdict:
      return arena.verdict();
    case core::Place::none:
    case core::Place::carried:
    case core::Place::blocks:
      break;
  }
  return {};
}

DataPlane::State::Posted DataPlane::State::wait(const core::RecipeStep& step, Job& job) {
  queue(step, job)->wait(event_of(step.mark, job));
  return {};
}

DataPlane::State::Posted DataPlane::State::record(const core::RecipeStep& step, Job& job) {
  queue(step, job)->record(event_of(step.mark, job));
  return {};
}

DataPlane::State::Posted DataPlane::State::reserve(const core::RecipeStep& step, Job& job) {
  job.credit = exchanges++ % Arena::kScratchCredits;
  auto& on = queue(step, job);
  on->wait(credit_free[job.credit].get());
  return {};
}

DataPlane::State::Posted DataPlane::State::carry(const core::RecipeStep&, Job& job) {
  buckets[job.bucket]->carry = carries++ % Arena::kScratchCredits;
  return {};
}

DataPlane::State::Posted DataPlane::State::note(const core::RecipeStep&, Job& job) {
  buckets[job.bucket]->launched_ns = device.now().count();
  return {};
}

DataPlane::State::Posted DataPlane::State::count(const core::RecipeStep&, Job& job) {
  job.input_counts = part_counts(job.launch.entry->counts);
  return {};
}

DataPlane::State::Posted DataPlane::State::cut_sums(const core::RecipeStep&, Job& job) {
  job.arrived =
      arena.incoming(job.credit).subview(0, elements(job.to) * core::size_of(job.launch.entry->wire));
  return {};
}

DataPlane::State::Posted DataPlane::State::cut_part(const core::RecipeStep&, Job& job) {
  const auto& entry = *job.launch.entry;
  const auto own = job.launch.from;
  const auto most = core::chunk_elements(entry);
  const auto start = own.start + job.chunk * most;
  job.from = job.to = {start, std::min(start + most, own.end)};
  const auto members = static_cast<std::size_t>(entry.counts.members());
  job.arrived = arena.incoming(job.credit).subview(0, members * elements(job.to) * core::size_of(entry.wire));
  return {};
}

DataPlane::State::Posted DataPlane::State::cut_gather(const core::RecipeStep&, Job& job) {
  const auto& entry = *job.launch.entry;
  const auto width = core::size_of(entry.wire);
  std::vector<std::size_t> counts;
  job.gathered.clear();
  for (const auto& range : core::chunk_ranges(entry, job.chunk)) {
    counts.push_back(elements(range));
    job.gathered.emplace_back(arena.gradients(job.bucket, 0, moved(range, job.launch.to.start)),
                              gradient_dtype(job.bucket));
  }
  job.input_counts = std::move(counts);
  const auto own = job.gathered[static_cast<std::size_t>(job.launch.place)].count();
  job.sent = arena.outgoing(job.credit).subview(0, own * width);
  job.arrived = arena.incoming(job.credit).subview(0, job.input_counts.total() * width);
  return {};
}

DataPlane::State::Posted DataPlane::State::cut_exchange(const core::RecipeStep&, Job& job) {
  const auto& entry = *job.launch.entry;
  const auto width = core::size_of(entry.wire);
  const auto chunk = core::exchange_chunk(entry, job.launch.place, job.chunk);
  job.input_counts = part_counts(chunk.input_counts);
  job.output_counts = part_counts(chunk.output_counts);
  job.arrived = arena.incoming(job.credit).subview(0, job.output_counts.total() * width);
  job.to = moved(chunk.own, job.launch.from.start);
  job.terms = {};
  job.terms.add({job.arrived, entry.wire}, job.launch.arriving);
  return {};
}

/// Which of three follows from how many sums this rank has: the program was written out with it.
DataPlane::State::Posted DataPlane::State::send(const core::RecipeStep&, Job& job) {
  using SendAs = void (State::*)(Job&);
  constexpr std::array<SendAs, 3> kSends{&State::send_nothing, &State::send_sum, &State::send_packed};
  (this->*kSends[static_cast<std::size_t>(job.launch.sending)])(job);
  return {};
}

void DataPlane::State::send_nothing(Job& job) {
  job.sent = {};
}

void DataPlane::State::send_sum(Job& job) {
  job.sent = job.roots.front();
}

/// In the order of the receivers: their part of each sum.
void DataPlane::State::send_packed(Job& job) {
  const auto wire = job.launch.entry->wire;
  job.sent = arena.outgoing(job.credit).subview(0, job.input_counts.total() * core::size_of(wire));
  std::vector<gpu::ConstElements> sent;
  for (const auto& range : core::chunk_ranges(*job.launch.entry, job.chunk)) {
    for (const auto& root : job.roots) sent.emplace_back(part_of(root, range), core::DType::f32);
  }
  gpu::pack(std::move(sent), {job.sent, wire}, stream_of(job.launch).get());
}

DataPlane::State::Posted DataPlane::State::pack_part(const core::RecipeStep& step, Job& job) {
  const auto own = job.gathered[static_cast<std::size_t>(job.launch.place)];
  gpu::cast(own, {job.sent, job.launch.entry->wire}, queue(step, job).get());
  return {};
}

/// Kept values were rounded to blocks when they were stepped or loaded, so nothing is lost here, not even
/// when a second gather packs what a first one unpacked. The packed parts, including this rank's, are laid
/// out as they are gathered.
DataPlane::State::Posted DataPlane::State::pack_blocks(const core::RecipeStep& step, Job& job) {
  const auto& entry = *job.launch.entry;
  const gpu::Elements part{memory_of(step.from, job.from, job), tensor_class(job.bucket).storage};
  const auto bytes =
      static_cast<std::size_t>(core::wire_bytes(entry, static_cast<std::int64_t>(part.count())));
  job.arrived = arena.blocks().subview(0, static_cast<std::size_t>(core::wire_bytes(entry, entry.elements)));
  job.sent = job.arrived.subview(static_cast<std::size_t>(job.launch.place) * bytes, bytes);
  gpu::pack_mx(entry.wire, part, job.sent, queue(step, job).get());
  return {};
}

DataPlane::State::Posted DataPlane::State::keep(const core::RecipeStep&, Job& job) {
  const auto own = core::chunk_range(*job.launch.entry, job.chunk, 0);
  job.to = moved(own, job.launch.from.start);
  job.terms = {};
  for (const auto& root : job.roots) job.terms.push_back({part_of(root, own), core::DType::f32});
  return {};
}

DataPlane::State::Posted DataPlane::State::post(const core::RecipeStep& step, Job& job) {
  gpu::Operation operation;
  operation.kind = gpu::kind_of(job.launch.entry->operation);
  operation.dtype = job.launch.entry->wire;
  operation.reduce = std::array{gpu::ReduceOp::sum, gpu::ReduceOp::average}[job.launch.entry->averages];
  operation.input = memory_of(step.from, job.from, job);
  operation.output = memory_of(step.to, job.to, job);
  operation.input_counts = job.input_counts;
  operation.output_counts = job.output_counts;
  return post_operation(std::move(operation), job);
}

DataPlane::State::Posted DataPlane::State::post_blocks(const core::RecipeStep&, Job& job) {
  gpu::Operation operation;
  operation.kind = gpu::OperationKind::all_gather;
  operation.dtype = core::DType::u8;
  operation.input = job.sent;
  operation.output = job.arrived;
  return post_operation(std::move(operation), job);
}

DataPlane::State::Posted DataPlane::State::accumulate_in(const core::RecipeStep& step, Job& job) {
  const auto dtype = job.launch.entry->wire;
  gpu::accumulate({job.arrived, dtype}, {memory_of(step.to, job.to, job), dtype}, queue(step, job).get());
  return {};
}

/// A sum never includes what is below it in its stack, so whatever it overwrites was added before.
DataPlane::State::Posted DataPlane::State::add_tree(const core::RecipeStep& step, Job& job) {
  const auto terms = terms_of(job);
  for (const auto& root : *job.launch.sums) {
    gpu::TreeSum sum;
    for (const auto& [first, count] : root.terms) sum.slots.add(terms, first, count);
    sum.steps = root.steps;
    sum.factor = factor_of(step);
    sum.output = {destination_of(root, job), core::DType::f32};
    gpu::tree_sum(std::move(sum), queue(step, job).get());
  }
  return {};
}

/// One term after the other, a few in each pass over the output: a kernel's fast memory holds no more of
/// them.
DataPlane::State::Posted DataPlane::State::add_in_order(const core::RecipeStep& step, Job& job) {
  constexpr std::size_t kTerms = 16;
  const auto terms = terms_of(job);
  const auto& sum = job.launch.sums->front();
  const gpu::Elements output{destination_of(sum, job), core::DType::f32};
  for (std::size_t next = 0; next < terms.size();) {
    gpu::TreeSum pass;
    if (next > 0) pass.slots.push_back(output);
    const auto count = std::min(kTerms - pass.slots.size(), terms.size() - next);
    pass.slots.add(terms, next, count);
    next += count;
    pass.steps = std::span(sum.steps).first(pass.slots.size() - 1);
    pass.output = output;
    gpu::tree_sum(std::move(pass), queue(step, job).get());
  }
  return {};
}

DataPlane::State::Posted DataPlane::State::add_members(const core::RecipeStep& step, Job& job) {
  const auto& order = job.launch.sums->front();
  gpu::TreeSum sum;
  sum.slots.add({job.arrived, core::DType::f32},
                static_cast<std::size_t>(job.launch.entry->counts.members()));
  sum.steps = order.steps;
  sum.factor = factor_of(step);
  sum.output = {memory_of(step.to, job.to, job), core::DType::f32};
  gpu::tree_sum(std::move(sum), queue(step, job).get());
  return {};
}

DataPlane::State::Posted DataPlane::State::unpack(const core::RecipeStep& step, Job& job) {
  gpu::unpack({job.arrived, job.launch.entry->wire}, job.gathered, queue(step, job).get());
  return {};
}

void DataPlane::State::unpack_members(const core::RecipeStep& step, Job& job, std::size_t first,
                                      std::size_t end) {
  const auto output = memory_of(step.to, job.to, job);
  const auto dtype = tensor_class(job.bucket).storage;
  const auto bytes = job.sent.bytes;
  const gpu::Elements part{output.subview(first * elements(job.from) * core::size_of(dtype),
                                          (end - first) * elements(job.from) * core::size_of(dtype)),
                           dtype};
  gpu::unpack_mx(job.launch.entry->wire, job.arrived.subview(first * bytes, (end - first) * bytes),
                 elements(job.from), part, queue(step, job).get());
}

DataPlane::State::Posted DataPlane::State::unpack_blocks(const core::RecipeStep& step, Job& job) {
  unpack_members(step, job, 0, static_cast<std::size_t>(job.launch.entry->counts.members()));
  return {};
}

DataPlane::State::Posted DataPlane::State::unpack_others(const core::RecipeStep& step, Job& job) {
  for (const auto& [first, end] : job.launch.others) unpack_members(step, job, first, end);
  return {};
}

/// Sums of earlier rounds come before what has arrived.
gpu::Slots DataPlane::State::terms_of(const Job& job) {
  gpu::Slots terms;
  for (const int slot : job.launch.rested)
    terms.push_back({arena.gradients(job.bucket, slot, job.to), core::DType::f32});
  terms.add(job.terms, 0, job.terms.size());
  return terms;
}

/// All of a sum that is kept here, or one of those that are carried on to the next axis.
gpu::BufferView DataPlane::State::sum_at(const KeptSum& sum, core::ElementRange whole,
                                         core::ElementRange range, core::BucketIndex bucket,
                                         int full_slot) const {
  switch (sum.place) {
    case core::Place::full_gradients:
      return arena.full_gradients(bucket, full_slot, range, sum.slot);
    case core::Place::carried: {
      const auto first = static_cast<std::size_t>(sum.slot) * elements(whole) +
                         static_cast<std::size_t>(range.start - whole.start);
      return arena.carry(buckets[bucket]->carry)
          .subview(first * sizeof(float), elements(range) * sizeof(float));
    }
    default:
      return arena.gradients(bucket, sum.slot, range);
  }
}

gpu::BufferView DataPlane::State::destination_of(const RootSum& sum, const Job& job) const {
  return sum_at(sum.kept, job.launch.to, job.to, job.bucket, job.launch.slot);
}

}  // namespace troupe::actors
