#include "actors/planes/step/communication.hpp"

#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

namespace {

/// Before anything is sent.
core::Result<void> check(const DataPlaneGroups& groups, const RankProgram& program) {
  for (const auto& launch : program.launches()) {
    const auto communicator = core::communicator_of(*launch.entry);
    const auto found = groups.of.find(communicator);
    if (found == groups.of.end()) {
      return core::fail(core::Errc::internal, "{} needs the group {}, which was not made", describe(launch),
                        core::describe(communicator));
    }
    const auto members = launch.entry->counts.members();
    if (found->second->size() == members) continue;
    return core::fail(core::Errc::internal, "{} is planned for {} members of {}, and the group {} has {}",
                      describe(launch), members, core::describe(communicator), found->second->name(),
                      found->second->size());
  }
  return {};
}

}  // namespace

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

messages::Failure Flight::failure() const {
  if (refused) return messages::failure_of(*refused);
  for (const auto& operation : operations) {
    const auto result = operation->result();
    if (result && !*result) return messages::failure_of(*result);
  }
  return {};
}

core::Result<void> Communication::set_groups(DataPlaneGroups groups) {
  TRY(check(groups, in_.tensors.program));
  {
    std::lock_guard lock(mutex_);
    groups_ = std::move(groups);
    if (aborted_) abort_groups();
  }
  for (const auto& group : groups_.owned) {
    const bool is_registered = TRY(group->use_memory(in_.tensors.arena.carried()));
    is_registered_ = is_registered_ || is_registered;
  }
  return {};
}

void Communication::let_go() {
  std::lock_guard lock(mutex_);
  groups_ = {};
}

// A rank may be lost while the groups are being made.
void Communication::abort(const core::Error& reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
  abort_groups();
}

void Communication::abort_groups() {
  for (const auto& group : groups_.owned) group->abort(*aborted_);
  for (const auto& group : groups_.trainers) group->abort(*aborted_);
}

void Communication::post(Flight& flight, gpu::Operation operation, core::Communicator communicator) {
  if (!flight.began_ns) {
    flight.began_ns = std::make_shared<std::atomic<std::int64_t>>(0);
    in_.streams.communication->notify([this, began = flight.began_ns] {
      const auto now = in_.device.now();
      *began = now.count();
      busy_.begin(now);
    });
  }
  auto posted = groups_.of.at(communicator)->post(std::move(operation), in_.streams.communication.get());
  if (posted) {
    flight.operations.push_back(std::move(*posted));
  } else {
    flight.refused = std::move(posted.error());
  }
}

void Communication::when_over(Flight flight, Over over) {
  in_.streams.communication->notify([this, flight = std::move(flight), over = std::move(over)] {
    const auto now = in_.device.now();
    if (flight.began_ns) busy_.end(now);
    if (over) over(flight, flight.failure(), now);
  });
}

}  // namespace troupe::actors
