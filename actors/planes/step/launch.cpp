#include <algorithm>
#include <utility>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/verdict.hpp"
#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

gpu::Operation DataPlane::State::operation(gpu::OperationKind kind, core::DType dtype) const {
  gpu::Operation operation;
  operation.kind = kind;
  operation.dtype = dtype;
  operation.deadline = options.collective_deadline;
  return operation;
}

DataPlane::State::Posted DataPlane::State::post(const PlannedLaunch& launch, gpu::Operation operation,
                                                Flight& flight) {
  auto& stream = stream_of(launch);
  if (!flight.began_ns) {
    flight.began_ns = std::make_shared<std::atomic<std::int64_t>>(0);
    stream->notify([this, began = flight.began_ns] {
      const auto now = device.now();
      *began = now.count();
      communicating.begin(now);
    });
  }
  const auto group = groups.of.find(core::communicator_of(launch.entry));
  CHECK(group != groups.of.end(), "a session makes a group for each communicator of its program");
  flight.operations.push_back(TRY(group->second->post(std::move(operation), stream.get())));
  return {};
}

void DataPlane::State::launch(const LaunchCollective& work) {
  const auto& planned = program.launch(work.entry);
  Flight flight;
  Posted posted;
  if (planned.is_verdict()) {
    posted = reduce_verdict(planned, flight);
  } else if (!planned.moves_gradients()) {
    posted = gather_parameters(planned, flight);
  } else if (core::is_also_sum(planned.entry)) {
    posted = sum_beyond_axes(work.entry, flight);
    if (posted) end_reduction(planned, work.step, flight);
  } else if (planned.entry.operation == core::CollectiveKind::all_gather) {
    posted = gather_gradients(planned, flight);
  } else {
    buckets[planned.bucket->value]->launched_ns = device.now().count();
    posted = planned.entry.operation == core::CollectiveKind::all_to_all ? exchange(work.entry, flight)
                                                                         : reduce(planned, flight);
    if (posted) end_reduction(planned, work.step, flight);
  }
  if (options.launched) options.launched(work.step, work.entry);
  {
    std::lock_guard lock(verdict_mutex);
    if (posted && planned.is_verdict()) verdict_launched = work.step;
    if (!posted && planned.moves_gradients()) reduction_failed = work.step;
  }
  if (posted) return complete(work, std::move(flight));
  if (flight.began_ns) stream_of(planned)->notify([this] { communicating.end(device.now()); });
  say(messages::Role::conductor, 0,
      messages::CollectiveDone{work.step, work.entry, work.sequence, messages::failure_of(posted.error())});
}

DataPlane::State::Posted DataPlane::State::gather_parameters(const PlannedLaunch& launch, Flight& flight) {
  const auto& entry = launch.entry;
  const auto bucket = *launch.bucket;
  const auto from = program.held(entry.from, bucket);
  const auto to = program.held(entry.to, bucket);
  const bool rests = launch.publishes() || entry.from == plan.placements_of(bucket).parameters;
  auto& stream = stream_of(launch);
  const auto input = rests ? arena.parameters(bucket, from) : arena.gathered(bucket, launch.slot, from);
  const auto output =
      launch.publishes() ? arena.parameters(bucket, to) : arena.gathered(bucket, launch.slot, to);
  stream->wait(buckets[bucket.value]->updated.get());
  if (launch.slot >= 0 && compute) {
    stream->wait(released[static_cast<std::size_t>(launch.slot)].get());
  }
  if (core::is_in_blocks(entry)) {
    TRY(gather_blocks(launch, input, output, flight));
  } else {
    auto post_it = operation(gpu::OperationKind::all_gather, entry.wire);
    post_it.input = input;
    post_it.output = output;
    TRY(post(launch, std::move(post_it), flight));
  }
  return {};
}

/// Kept values were rounded to blocks when they were stepped or loaded, so nothing is lost here, not even
/// when a second gather packs what a first one unpacked. The packed parts, including this rank's, are laid
/// out as they are gathered.
DataPlane::State::Posted DataPlane::State::gather_blocks(const PlannedLaunch& launch, gpu::BufferView input,
                                                         gpu::BufferView output, Flight& flight) {
  const auto& entry = launch.entry;
  const auto dtype = tensor_class(*launch.bucket).storage;
  auto& stream = stream_of(launch);
  const gpu::Elements part{input, dtype};
  const auto elements = static_cast<std::int64_t>(part.count());
  const auto bytes = static_cast<std::size_t>(core::wire_bytes(entry, elements));
  const auto all =
      arena.blocks().subview(0, static_cast<std::size_t>(core::wire_bytes(entry, entry.elements)));
  auto post_it = operation(gpu::OperationKind::all_gather, core::DType::u8);
  post_it.output = all;
  const auto own = all.subview(static_cast<std::size_t>(launch.place) * bytes, bytes);
  post_it.input = own;
  gpu::pack_mx(entry.wire, part, own, stream.get());
  TRY(post(launch, std::move(post_it), flight));
  // What this rank gathers into its own place stays as it is: others may be reading it.
  const bool is_in_place = input.data >= output.data && input.data < output.data + output.bytes;
  const auto unpack = [&](std::size_t first, std::size_t end) {
    if (first == end) return;
    gpu::unpack_mx(entry.wire, all.subview(first * bytes, (end - first) * bytes), part.count(),
                   {output.subview(first * input.bytes, (end - first) * input.bytes), dtype}, stream.get());
  };
  const auto own_place = static_cast<std::size_t>(launch.place);
  const auto members = static_cast<std::size_t>(entry.counts.members());
  unpack(0, is_in_place ? own_place : members);
  if (is_in_place) unpack(own_place + 1, members);
  return {};
}

void DataPlane::State::keep_verdict(const PrepareVerdict& work) {
  std::lock_guard lock(verdict_mutex);
  verdict = work;
}

DataPlane::State::Posted DataPlane::State::reduce_verdict(const PlannedLaunch& launch, Flight& flight) {
  {
    // The previous step's verdict was read before this one was requested, so nothing is copying these words.
    std::lock_guard lock(verdict_mutex);
    gpu::declare(device, "words of the verdict", {}, {arena.own_verdict()});
    const auto words = arena.own_verdict().as<std::int64_t>();
    write_verdict(verdict.losses, verdict.refuse, verdict.wishes, verdict.alike,
                  words.first(verdict_words()));
    CHECK(expert_counts.size() == words.size() - verdict_words(), "a step counts where its tokens go");
    std::copy(expert_counts.begin(), expert_counts.end(), words.subspan(verdict_words()).begin());
  }
  auto& stream = stream_of(launch);
  // Every reduction of the step was launched before, so "update" measures every bucket before this.
  gpu::copy(arena.own_verdict(), arena.verdict(), update.get());
  gpu::add_square_sums(arena.squares(), squares_of_verdict(arena.verdict()), update.get());
  update->record(verdict_ready.get());
  stream->wait(verdict_ready.get());
  auto sum = operation(gpu::OperationKind::all_reduce, core::DType::i64);
  sum.input = arena.verdict();
  sum.output = arena.verdict();
  TRY(post(launch, std::move(sum), flight));
  gpu::copy(arena.verdict(), arena.common_verdict(), stream.get());
  return {};
}

void DataPlane::State::complete(const LaunchCollective& work, Flight flight) {
  const auto& planned = program.launch(work.entry);
  stream_of(planned)->notify([this, work, &planned, flight = std::move(flight)] {
    const auto now = device.now();
    messages::CollectiveDone done{work.step, work.entry, work.sequence, {}};
    for (const auto& operation : flight.operations) {
      const auto result = operation->result();
      if (result && !*result && !done.failure.failed) done.failure = messages::failure_of(*result);
    }
    if (flight.began_ns) {
      communicating.end(now);
      const auto flow = planned.bucket ? bucket_flow(work.step, *planned.bucket) : 0;
      trace_span(planned.entry.stream == 0 ? "communication" : "gather", describe(planned),
                 std::chrono::nanoseconds(flight.began_ns->load()), now, flow);
    }
    if (planned.is_verdict() && !done.failure.failed) {
      gpu::declare(device, "the verdict", {arena.common_verdict()}, {});
      const auto words = arena.common_verdict().as<std::int64_t>();
      const auto counts = words.subspan(verdict_words());
      {
        std::lock_guard lock(verdict_mutex);
        all_expert_counts.assign(counts.begin(), counts.end());
        verdict_arrived = work.step;
        arrived_words.assign(words.begin(), words.end());
      }
      say(messages::Role::rank_supervisor, 0, messages::VerdictArrived{work.step, verdict_of(words)});
    }
    if (planned.moves_gradients() && done.failure.failed) {
      std::lock_guard lock(verdict_mutex);
      reduction_failed = work.step;
    }
    say(messages::Role::conductor, 0, std::move(done));
  });
}

messages::Verdict DataPlane::State::verdict_of(std::span<const std::int64_t> words) const {
  const auto& o = plan.options;
  return read_verdict(words.first(verdict_words()), {o.lanes, o.microbatches, o.average, o.loss_divisor});
}

void DataPlane::State::take(DataPlaneGroups made) {
  std::lock_guard lock(groups_mutex);
  groups = std::move(made);
  if (aborted) abort_groups();
}

// A rank may be lost while the groups are being made.
void DataPlane::State::abort(const core::Error& reason) {
  std::lock_guard lock(groups_mutex);
  if (!aborted) aborted = reason;
  abort_groups();
}

void DataPlane::State::abort_groups() {
  for (const auto& group : groups.owned) group->abort(*aborted);
  for (const auto& group : groups.trainers) group->abort(*aborted);
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
