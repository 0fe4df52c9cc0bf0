// How kernels begin, meet each other and end.
#include <algorithm>
#include <utility>

#include "core/check.hpp"
#include "tests/device_bytes/device_bytes.hpp"
#include "tests/nccl_emulation/fake_world.hpp"

namespace troupe::gpu {
namespace {

using Function = NcclCall::Function;

void begin_next(FakeNcclProcess& process);

void finish_call(const FakeKernelPointer& kernel) {
  if (--kernel->calls_running > 0) return;
  kernel->over = true;
  FakeNcclProcess& process = *kernel->comm->process;
  auto& to_complete = process.world->to_complete;
  std::ranges::move(kernel->completions, std::back_inserter(to_complete));
  begin_next(process);
}

bool agree(const NcclCall& a, const NcclCall& b) {
  return a.function == b.function && a.count == b.count && a.type == b.type && a.reduction == b.reduction &&
         a.peer == b.peer;
}

void write(void* output, const std::vector<std::byte>& bytes) {
  tests::copy_bytes(output, bytes.data(), bytes.size());
}

void append(const std::byte* input, std::size_t bytes, std::vector<std::byte>& to) {
  to.resize(to.size() + bytes);
  tests::copy_bytes(to.data() + to.size() - bytes, input, bytes);
}

std::byte* at(void* memory, std::size_t offset) {
  return static_cast<std::byte*>(memory) + offset;
}

/// All inputs before any output: members work in place.
void execute(const std::map<int, FakeArrival>& arrivals) {
  const NcclCall& first = arrivals.begin()->second.call;
  const std::size_t bytes = first.count * size_of(first.type);
  std::vector<const std::byte*> inputs;
  std::vector<std::byte> all;
  for (const auto& [rank, arrival] : arrivals) {
    inputs.push_back(static_cast<const std::byte*>(arrival.call.input));
    if (first.function == Function::all_gather) append(inputs.back(), bytes, all);
  }
  const std::size_t count =
      first.function == Function::reduce_scatter ? first.count * arrivals.size() : first.count;
  if (first.function == Function::broadcast) {
    append(inputs[static_cast<std::size_t>(first.peer)], bytes, all);
  } else if (first.function != Function::all_gather) {
    all = reduce_in_ring(first.type, first.reduction, inputs, count);
  }
  for (const auto& [rank, arrival] : arrivals) {
    if (first.function == Function::reduce && rank != first.peer) continue;
    if (first.function == Function::reduce_scatter) {
      tests::copy_bytes(arrival.call.output, at(all.data(), static_cast<std::size_t>(rank) * bytes), bytes);
    } else {
      write(arrival.call.output, all);
    }
  }
}

void arrive_at_meeting(const FakeKernelPointer& kernel, const NcclCall& call) {
  FakeClique& clique = *kernel->comm->clique;
  const std::uint64_t number = kernel->comm->collectives++;
  auto& arrivals = clique.meetings[number];
  arrivals.emplace(kernel->comm->rank, arrival_of(kernel, call));
  if (static_cast<int>(arrivals.size()) < clique.size) return;
  const NcclCall& first = arrivals.begin()->second.call;
  for (const auto& [rank, arrival] : arrivals) {
    if (agree(arrival.call, first)) continue;
    kernel->comm->process->world->violations.push_back("members disagree, and hang");
    return;
  }
  std::vector<FakeArrival::Memory> memory;
  for (const auto& [rank, arrival] : arrivals) memory.push_back(arrival.memory);
  compare_memory(*kernel->comm->process->world, memory);
  execute(arrivals);
  const auto done = std::move(arrivals);
  clique.meetings.erase(number);
  for (const auto& [rank, arrival] : done) finish_call(arrival.kernel);
}

void arrive_at_channel(const FakeKernelPointer& kernel, const NcclCall& call) {
  const bool sends = call.function == Function::send;
  const int rank = kernel->comm->rank;
  auto& channel =
      kernel->comm->clique->channels[sends ? std::pair(rank, call.peer) : std::pair(call.peer, rank)];
  (sends ? channel.sends : channel.receives).push_back(arrival_of(kernel, call));
  if (channel.sends.empty() || channel.receives.empty()) return;
  const FakeArrival send = channel.sends.front();
  const FakeArrival receive = channel.receives.front();
  if (send.call.count != receive.call.count || send.call.type != receive.call.type) {
    kernel->comm->process->world->violations.push_back("both sides of a message disagree, and hang");
    return;
  }
  channel.sends.pop_front();
  channel.receives.pop_front();
  compare_memory(*kernel->comm->process->world, {send.memory, receive.memory});
  tests::copy_bytes(receive.call.output, send.call.input, send.call.count * size_of(send.call.type));
  finish_call(send.kernel);
  finish_call(receive.kernel);
}

void begin(const FakeKernelPointer& kernel) {
  kernel->begun = true;
  kernel->calls_running = kernel->calls.size();
  // A copy: the last call may end the kernel.
  const auto calls = kernel->calls;
  for (const auto& each : calls) {
    const bool is_message = each.call.function == Function::send || each.call.function == Function::receive;
    if (is_message) {
      arrive_at_channel(kernel, each.call);
    } else {
      arrive_at_meeting(kernel, each.call);
    }
  }
}

/// The next kernel that may begin: all its streams have come to it, and no earlier one is in its way.
FakeKernelPointer find_next(const FakeNcclProcess& process) {
  std::set<const ncclComm*> busy;
  for (const FakeKernelPointer& kernel : process.kernels) {
    if (kernel->over) continue;
    const bool is_free =
        process.world->options.has_room_for_all ? !busy.contains(kernel->comm) : busy.empty();
    if (is_free && !kernel->begun && kernel->completions.size() == kernel->streams.size()) return kernel;
    busy.insert(kernel->comm);
  }
  return nullptr;
}

void begin_next(FakeNcclProcess& process) {
  while (!process.kernels.empty() && process.kernels.front()->over) process.kernels.pop_front();
  while (const FakeKernelPointer next = find_next(process)) begin(next);
}

void forget(std::deque<FakeArrival>& arrivals, const ncclComm& comm) {
  std::erase_if(arrivals, [&](const FakeArrival& arrival) { return arrival.kernel->comm == &comm; });
}

}  // namespace

void arrive_on_stream(const FakeKernelPointer& kernel, Completion completion) {
  FakeNcclProcess& process = *kernel->comm->process;
  if (kernel->over) {
    process.world->to_complete.push_back(std::move(completion));
    return;
  }
  kernel->completions.push_back(std::move(completion));
  begin_next(process);
}

void drop_kernels(ncclComm& comm) {
  FakeNcclProcess& process = *comm.process;
  if (comm.state == ncclComm::State::launching) process.issuer.reset();
  comm.pending.reset();
  for (auto& [number, arrivals] : comm.clique->meetings) arrivals.erase(comm.rank);
  for (auto& [key, channel] : comm.clique->channels) {
    forget(channel.sends, comm);
    forget(channel.receives, comm);
  }
  for (const auto& kernel : process.kernels) {
    if (kernel->comm != &comm || kernel->over) continue;
    kernel->over = true;
    std::ranges::move(kernel->completions, std::back_inserter(process.world->to_complete));
  }
  begin_next(process);
}

bool has_kernels(const ncclComm& comm) {
  return std::ranges::any_of(comm.process->kernels, [&](const FakeKernelPointer& kernel) {
    return kernel->comm == &comm && !kernel->over;
  });
}

void remove_communicator(ncclComm& comm) {
  FakeNcclWorld& world = *comm.process->world;
  const bool left_in_peace = comm.state == ncclComm::State::finalized;
  comm.state = ncclComm::State::gone;
  comm.registrations.clear();
  --world.live;
  if (!world.options.tells_peers || left_in_peace) return;
  for (const auto& [rank, peer] : comm.clique->members) {
    if (peer->state != ncclComm::State::gone && peer->async == NcclStatus::success) {
      peer->async = NcclStatus::remote_error;
    }
  }
}

}  // namespace troupe::gpu
