#include <algorithm>
#include <utility>

#include "actors/planes/step/data_plane_state.hpp"
#include "core/indices.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

gpu::Operation LoadedBytes::operation(std::chrono::nanoseconds deadline) const {
  gpu::Operation operation;
  operation.kind = gpu::OperationKind::all_to_all;
  operation.dtype = core::DType::u8;
  operation.input = input;
  operation.output = output;
  operation.input_counts = input_counts;
  operation.output_counts = output_counts;
  operation.deadline = deadline;
  return operation;
}

/// Reports when the stream has completed them all. `owner` keeps their memory alive until then.
template <class Over>
void DataPlane::State::tell_over(Flight flight, gpu::Stream& stream, std::shared_ptr<const void> owner) {
  stream->notify([this, flight = std::move(flight), owner = std::move(owner)] {
    Over over;
    if (flight.refused) over.failure = messages::failure_of(*flight.refused);
    for (const auto& operation : flight.operations) {
      const auto result = operation->result();
      if (result && !*result && !over.failure.failed) over.failure = messages::failure_of(*result);
    }
    if (flight.began_ns) communicating.end(device.now());
    say(messages::Role::trainer, 0, std::move(over));
  });
}

/// Some of the program's entries, outside of a step and in its order.
DataPlane::State::Flight DataPlane::State::carry_out(const std::vector<core::PlanEntryIndex>& entries) {
  Flight flight;
  for (const auto entry : entries) {
    auto job = job_of(program.launch(entry), {});
    job.flight = std::move(flight);
    const auto done = carry_out(job);
    flight = std::move(job.flight);
    if (done) continue;
    flight.refused = done.error();
    break;
  }
  return flight;
}

void DataPlane::State::gather_loaded() {
  tell_over<messages::StateGathered>(carry_out(program.publishing()), communication.back(), nullptr);
}

int DataPlane::State::gather_unit(const std::vector<core::BucketIndex>& wanted) {
  const auto entries = program.bringing(wanted);
  tell_over<messages::StateGathered>(carry_out(entries), communication.back(), nullptr);
  return entries.empty() ? -1 : program.launch(entries.front()).slot;
}

bool DataPlane::State::rounds_values() const {
  return std::any_of(plan.buffers.begin(), plan.buffers.end(),
                     [](const TrainingBuffer& buffer) { return buffer.gathered.has_value(); });
}

void DataPlane::State::round_values() {
  for (const auto bucket : plan.buckets.indices()) {
    if (!has_blocks(bucket)) continue;
    const auto& type = tensor_class(bucket);
    for (const auto& segment :
         segments(bucket, program.held(plan.placements_of(bucket).parameters, bucket))) {
      const gpu::Elements values{arena.parameters(bucket, segment.in_buffer), type.storage};
      gpu::round_to_mx(*type.gathered, values, values, update.get());
    }
  }
  // The trainer waits for it before it goes on.
  tell_over<messages::StateGathered>({}, update, nullptr);
}

void DataPlane::State::exchange_loaded(LoadedBytes bytes) {
  auto& stream = communication.front();
  Flight flight;
  flight.began_ns = std::make_shared<std::atomic<std::int64_t>>(0);
  stream->notify([this] { communicating.begin(device.now()); });
  const core::Communicator world{core::GroupKind::world, 0};
  auto posted = groups.of.at(world)->post(bytes.operation(options.collective_deadline), stream.get());
  if (!posted) {
    stream->notify([this] { communicating.end(device.now()); });
    say(messages::Role::trainer, 0, messages::LoadedShared{messages::failure_of(posted.error())});
    return;
  }
  flight.operations.push_back(std::move(*posted));
  tell_over<messages::LoadedShared>(std::move(flight), stream, std::move(bytes.owner));
}

}  // namespace troupe::actors
