#include <fmt/format.h>

#include <algorithm>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/verdict.hpp"
#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

std::size_t elements(core::ElementRange range) {
  return static_cast<std::size_t>(range.size());
}

}  // namespace

gpu::Operation DataPlane::State::operation(gpu::OperationKind kind, core::DType dtype) const {
  gpu::Operation operation;
  operation.kind = kind;
  operation.dtype = dtype;
  operation.deadline = options.collective_deadline;
  return operation;
}

std::vector<std::size_t> DataPlane::State::shard_sizes(core::BucketIndex bucket) const {
  std::vector<std::size_t> sizes;
  for (int index = 0; index < plan.world.value; ++index)
    sizes.push_back(elements(plan.shard(bucket, {index})));
  return sizes;
}

void DataPlane::State::prepare(const PrepareBucket& work) {
  const auto& bucket = plan.buckets[work.bucket.value];
  auto slot = [&](int index) { return arena.gradients(bucket.buffer, index, bucket.range); };
  if (compute) accumulate->wait(buckets[work.bucket.value]->computed.get());
  if (is_ordered()) {
    for (const auto& step : core::merge_after(work.lane, held(), plan.options.lanes)) {
      gpu::accumulate({slot(step.source), core::DType::f32}, {slot(step.destination), core::DType::f32},
                      accumulate.get());
      gpu::zero(slot(step.source), accumulate.get());
    }
  } else if (work.last && scale() != 1.0F) {
    gpu::scale({slot(0), plan.buffers[bucket.buffer.value].gradient_dtype}, scale(), accumulate.get());
  }
  if (work.last) {
    accumulate->record(buckets[work.bucket.value]->prepared.get());
    return;
  }
  accumulate->notify([this, work] {
    say(messages::Role::trainer, 0, messages::LaneMerged{work.step, work.lane, work.bucket});
  });
}

void DataPlane::State::launch(const LaunchCollective& work) {
  const auto& entry = plan.step.entries[core::place_of(work.entry)];
  const auto bucket = entry.bucket.value_or(core::BucketIndex{});
  bool brings_gradients = entry.purpose == core::PlanPurpose::exchange_gradients ||
                          entry.purpose == core::PlanPurpose::reduce_gradients;
  if (brings_gradients) buckets[bucket.value]->launched_ns = device.now().count();
  Posted posted = std::shared_ptr<gpu::OperationStatus>();
  switch (entry.purpose) {
    case core::PlanPurpose::exchange_gradients:
      posted = exchange(bucket);
      break;
    case core::PlanPurpose::reduce_gradients:
      posted = reduce(bucket);
      break;
    case core::PlanPurpose::reduce_across_instances:
      posted = reduce_across_instances(bucket);
      break;
    case core::PlanPurpose::gather_gradients:
      posted = gather_gradients(bucket);
      break;
    case core::PlanPurpose::verdict:
      posted = reduce_verdict();
      break;
    case core::PlanPurpose::gather_parameters:
      posted = gather_parameters(bucket);
      break;
  }
  if (!posted) {
    say(messages::Role::conductor, 0,
        messages::CollectiveDone{work.step, work.entry, work.sequence, messages::failure_of(posted.error())});
    return;
  }
  complete(work, std::move(*posted));
}

/// What this rank sends, in the order of the receivers: for each the part it owns of every root held here.
void DataPlane::State::pack(core::BucketIndex bucket, gpu::BufferView outgoing) {
  const auto& place = plan.buckets[bucket.value];
  auto roots = static_cast<int>(core::subtree_roots(held(), plan.options.lanes).size());
  std::vector<gpu::ConstBufferView> parts;
  for (int receiver = 0; receiver < plan.world.value; ++receiver) {
    auto part = plan.shard(bucket, {receiver});
    for (int root = 0; root < roots; ++root) parts.push_back(arena.gradients(place.buffer, root, part));
  }
  gpu::pack(std::move(parts), outgoing, communication.get());
}

DataPlane::State::Posted DataPlane::State::exchange(core::BucketIndex bucket) {
  const auto& place = plan.buckets[bucket.value];
  auto& state = *buckets[bucket.value];
  auto own = plan.shard(bucket, rank());
  std::vector<gpu::ConstBufferView> partials;
  std::shared_ptr<gpu::OperationStatus> status;
  std::size_t credit = exchanges++ % Arena::kScratchCredits;
  if (plan.world.value == 1) {
    auto roots = core::subtree_roots(held(), plan.options.lanes).size();
    for (std::size_t i = 0; i < roots; ++i)
      partials.push_back(arena.gradients(place.buffer, static_cast<int>(i), own));
    communication->wait(state.prepared.get());
  } else {
    auto input = arena.gradients(place.buffer, 0, place.range);
    auto post = operation(gpu::OperationKind::all_to_all, core::DType::f32);
    auto own_roots = core::subtree_roots(held(), plan.options.lanes).size();
    auto sizes = shard_sizes(bucket);
    std::size_t incoming_elements = 0;
    std::size_t outgoing_elements = 0;
    for (std::size_t peer = 0; peer < sizes.size(); ++peer) {
      auto roots = core::subtree_roots(plan.lanes[peer], plan.options.lanes).size();
      post.input_counts.push_back(own_roots * sizes[peer]);
      post.output_counts.push_back(roots * elements(own));
      outgoing_elements += own_roots * sizes[peer];
      for (std::size_t root = 0; root < roots; ++root) {
        auto slice = arena.incoming(static_cast<int>(credit))
                         .subview(incoming_elements * sizeof(float), elements(own) * sizeof(float));
        partials.push_back(slice);
        incoming_elements += elements(own);
      }
    }
    communication->wait(state.prepared.get());
    communication->wait(credit_free[credit].get());
    if (exchange_is_packed(plan, rank())) {
      input = arena.outgoing(static_cast<int>(credit)).subview(0, outgoing_elements * sizeof(float));
      pack(bucket, input);
    }
    post.input = input;
    post.output = arena.incoming(static_cast<int>(credit)).subview(0, incoming_elements * sizeof(float));
    mark_begin();
    status = TRY(groups.all->post(std::move(post), communication.get()));
  }
  communication->record(state.exchanged.get());
  update->wait(state.exchanged.get());
  gpu::TreeSum sum;
  sum.slots = std::move(partials);
  sum.steps = finishing;
  sum.factor = scale();
  sum.output = {arena.gradients(place.buffer, 0, own), core::DType::f32};
  gpu::tree_sum(std::move(sum), update.get());
  update->record(credit_free[credit].get());
  measure(bucket);
  return status;
}

DataPlane::State::Posted DataPlane::State::reduce(core::BucketIndex bucket) {
  const auto& place = plan.buckets[bucket.value];
  auto& state = *buckets[bucket.value];
  auto post = operation(gpu::OperationKind::all_reduce, plan.buffers[place.buffer.value].gradient_dtype);
  post.input = arena.gradients(place.buffer, 0, place.range);
  post.output = arena.gradients(place.buffer, 0, place.range);
  if (plan.optimizer_is_sharded()) {
    post.kind = gpu::OperationKind::reduce_scatter;
    post.output = arena.gradients(place.buffer, 0, plan.shard(bucket, rank()));
  }
  communication->wait(state.prepared.get());
  mark_begin();
  auto& group = groups.inner ? *groups.inner : *groups.all;
  auto status = TRY(group.post(std::move(post), communication.get()));
  communication->record(state.exchanged.get());
  if (groups.outer) return status;
  update->wait(state.exchanged.get());
  measure(bucket);
  return status;
}

DataPlane::State::Posted DataPlane::State::reduce_across_instances(core::BucketIndex bucket) {
  const auto& place = plan.buckets[bucket.value];
  auto& state = *buckets[bucket.value];
  auto post = operation(gpu::OperationKind::all_reduce, plan.buffers[place.buffer.value].gradient_dtype);
  post.input = arena.gradients(place.buffer, 0, plan.shard(bucket, rank()));
  post.output = arena.gradients(place.buffer, 0, plan.shard(bucket, rank()));
  mark_begin();
  auto status = TRY(groups.outer->post(std::move(post), communication.get()));
  communication->record(state.exchanged.get());
  update->wait(state.exchanged.get());
  measure(bucket);
  return status;
}

void DataPlane::State::measure(core::BucketIndex bucket) {
  const auto& place = plan.buckets[bucket.value];
  gpu::zero(arena.squares(bucket), update.get());
  // With several instances of the optimizer each part is held several times and must count once.
  if (rank().value < plan.shards()) {
    auto part = arena.gradients(place.buffer, 0, plan.shard(bucket, rank()));
    gpu::add_squares({part, plan.buffers[place.buffer.value].gradient_dtype}, arena.squares(bucket),
                     update.get());
  }
  update->record(buckets[bucket.value]->reduced.get());
}

DataPlane::State::Posted DataPlane::State::gather_gradients(core::BucketIndex bucket) {
  const auto& place = plan.buckets[bucket.value];
  auto post = operation(gpu::OperationKind::all_gather, plan.buffers[place.buffer.value].gradient_dtype);
  post.input_counts = shard_sizes(bucket);
  post.input = arena.gradients(place.buffer, 0, plan.shard(bucket, rank()));
  post.output = arena.gradients(place.buffer, 0, place.range);
  communication->wait(buckets[bucket.value]->reduced.get());
  mark_begin();
  auto status = TRY(groups.all->post(std::move(post), communication.get()));
  communication->record(buckets[bucket.value]->exchanged.get());
  return status;
}

DataPlane::State::Posted DataPlane::State::gather_parameters(core::BucketIndex bucket) {
  const auto& place = plan.buckets[bucket.value];
  auto post = operation(gpu::OperationKind::all_gather, plan.buffers[place.buffer.value].dtype);
  post.input = arena.parameters(place.buffer, plan.shard(bucket, rank()));
  post.output = arena.parameters(place.buffer, place.range);
  auto& group = groups.inner ? *groups.inner : *groups.all;
  communication->wait(buckets[bucket.value]->updated.get());
  mark_begin();
  return group.post(std::move(post), communication.get());
}

void DataPlane::State::keep_verdict(const PrepareVerdict& work) {
  std::lock_guard lock(verdict_mutex);
  verdict = work;
}

DataPlane::State::Posted DataPlane::State::reduce_verdict() {
  {
    // The verdict of the step before was read when this one's was asked for, so nothing copies these words.
    std::lock_guard lock(verdict_mutex);
    write_verdict(verdict.losses, verdict.refuse, verdict.wishes, rank(), plan.options.lanes,
                  arena.own_verdict().as<std::int64_t>());
  }
  // Every reduction of the step was launched before, so on "update" every bucket is measured before this.
  gpu::copy(arena.own_verdict(), arena.verdict(), update.get());
  gpu::add_square_sums(arena.squares(), squares_of_verdict(arena.verdict()), update.get());
  update->record(verdict_ready.get());
  communication->wait(verdict_ready.get());
  auto post = operation(gpu::OperationKind::all_reduce, core::DType::i64);
  post.input = arena.verdict();
  post.output = arena.verdict();
  mark_begin();
  auto status = TRY(groups.all->post(std::move(post), communication.get()));
  gpu::copy(arena.verdict(), arena.common_verdict(), communication.get());
  return status;
}

void DataPlane::State::mark_begin() {
  communication->notify([this] { operation_began_ns = device.now().count(); });
}

void DataPlane::State::complete(const LaunchCollective& work, std::shared_ptr<gpu::OperationStatus> status) {
  communication->notify([this, work, status = std::move(status)] {
    auto now = device.now();
    messages::CollectiveDone done{work.step, work.entry, work.sequence, {}};
    const auto& entry = plan.step.entries[core::place_of(work.entry)];
    if (status) {
      auto result = status->result();
      if (result) done.failure = messages::failure_of(*result);
      std::chrono::nanoseconds began(operation_began_ns.exchange(0));
      communication_ns += (now - began).count();
      trace_span("communication", core::describe(entry), began, now, flow_of(entry, work.step));
    }
    if (entry.purpose == core::PlanPurpose::verdict && !done.failure.failed) {
      auto words = arena.common_verdict().as<std::int64_t>();
      say(messages::Role::rank_supervisor, 0,
          messages::VerdictArrived{work.step, read_verdict(words, plan.options.lanes, plan.world)});
    }
    say(messages::Role::conductor, 0, std::move(done));
  });
}

void DataPlane::State::abort(const core::Error& reason) {
  for (auto* group : {groups.all.get(), groups.inner.get(), groups.outer.get()}) {
    if (group) group->abort(reason);
  }
}

std::uint64_t DataPlane::State::flow_of(const core::PlanEntry& entry, core::Step step) {
  return entry.bucket ? bucket_flow(step, *entry.bucket) : 0;
}

void DataPlane::State::say(messages::Role role, std::uint32_t index, messages::Message message) {
  // The device speaks for whoever asked it: from and to are roles of this rank.
  messages::Address to{rank(), role, index};
  options.post({to, to, options.epoch, std::move(message)});
}

void DataPlane::State::trace_span(const char* track, std::string name, std::chrono::nanoseconds begin,
                                  std::chrono::nanoseconds end, std::uint64_t flow) {
  if (!options.tracer) return;
  options.tracer->add({core::TraceEvent::Kind::span, track, std::move(name), begin, end, 0, flow});
}

}  // namespace troupe::actors
