// Memory of NCCL's own, and what communicators have registered of it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/nccl_emulation/fake_world.hpp"

namespace troupe::gpu {
namespace {

using Function = NcclCall::Function;
using Memory = FakeArrival::Memory;
using State = ncclComm::State;
using ProcessPointer = std::shared_ptr<FakeNcclProcess>;

NcclStatus violate(FakeNcclWorld& world, NcclStatus status, std::string what) {
  world.violations.push_back(std::move(what));
  return status;
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

bool contains(const std::byte* range, std::size_t range_bytes, const std::byte* part, std::size_t bytes) {
  return range <= part && part + bytes <= range + range_bytes;
}

NcclStatus mem_alloc(const ProcessPointer& process, void** memory, std::size_t bytes) {
  const FakeNcclLock lock(*process->world);
  if (process->memory_status != NcclStatus::success) return process->memory_status;
  *memory = process->memory.take(bytes);
  if (*memory == nullptr) return NcclStatus::unhandled_cuda_error;
  process->world->ranges[static_cast<const std::byte*>(*memory)] = {bytes, process.get()};
  return NcclStatus::success;
}

NcclStatus mem_free(const ProcessPointer& process, void* memory) {
  const FakeNcclLock lock(*process->world);
  FakeNcclWorld& world = *process->world;
  const auto found = world.ranges.find(static_cast<const std::byte*>(memory));
  if (found == world.ranges.end() || found->second.process != process.get()) {
    return violate(world, NcclStatus::invalid_argument, "memory is freed that ncclMemAlloc did not give");
  }
  for (const auto& comm : world.communicators) {
    for (const auto& each : comm->registrations) {
      if (comm->process != process || !overlap(each.memory, each.bytes, found->first, found->second.bytes))
        continue;
      (void)violate(world, NcclStatus::success, "memory is freed that a communicator has registered");
    }
  }
  world.ranges.erase(found);
  process->memory.give_back(memory);
  return NcclStatus::success;
}

NcclStatus comm_register(const ProcessPointer& process, NcclComm comm, void* memory, std::size_t bytes,
                         void** handle) {
  const FakeNcclLock lock(*process->world);
  FakeNcclWorld& world = *process->world;
  *handle = nullptr;
  if (process->dead) return NcclStatus::internal_error;
  if (process->issuer && *process->issuer != std::this_thread::get_id()) {
    return violate(world, NcclStatus::invalid_usage, "one thread registers while another launches");
  }
  if (comm->state != State::idle) {
    return violate(world, NcclStatus::invalid_usage, "a registration that is not the communicator's turn");
  }
  if (process->registration_status) return *process->registration_status;
  const auto* const begin = static_cast<const std::byte*>(memory);
  const bool is_ours = std::ranges::any_of(world.ranges, [&](const auto& each) {
    return each.second.process == process.get() && contains(each.first, each.second.bytes, begin, bytes);
  });
  if (!is_ours) {
    return violate(world, NcclStatus::success, "memory is registered that ncclMemAlloc did not give");
  }
  for (const auto& each : comm->registrations) {
    if (overlap(each.memory, each.bytes, begin, bytes)) {
      (void)violate(world, NcclStatus::success, "memory is registered twice");
    }
  }
  *handle = &comm->registrations.emplace_back(ncclComm::Registration{begin, bytes});
  return NcclStatus::success;
}

NcclStatus comm_deregister(const ProcessPointer& process, NcclComm comm, void* handle) {
  const FakeNcclLock lock(*process->world);
  if (process->dead) return NcclStatus::internal_error;
  if (comm->state != State::idle) {
    return violate(*process->world, NcclStatus::invalid_usage,
                   "an end of a registration that is not the communicator's turn");
  }
  const auto erased = std::erase_if(comm->registrations, [&](const auto& each) { return &each == handle; });
  if (erased == 1) return NcclStatus::success;
  return violate(*process->world, NcclStatus::invalid_usage, "a registration is ended that there is not");
}

}  // namespace

FakeNcclMemory FakeNcclMemory::of_host() {
  FakeNcclMemory memory;
  memory.take = [](std::size_t bytes) {
    constexpr std::size_t kAlignment = 4096;
    const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const taken = std::aligned_alloc(kAlignment, whole);
    if (taken != nullptr) std::memset(taken, 0xa5, whole);
    return taken;
  };
  memory.give_back = [](void* taken) { std::free(taken); };
  return memory;
}

FakeArrival arrival_of(const FakeKernelPointer& kernel, const NcclCall& call) {
  const ncclComm& comm = *kernel->comm;
  const auto is_registered = [&](const void* memory, std::size_t bytes) {
    return std::ranges::any_of(comm.registrations, [&](const auto& each) {
      return contains(each.memory, each.bytes, static_cast<const std::byte*>(memory), bytes);
    });
  };
  const std::size_t part = call.count * size_of(call.type);
  const std::size_t whole = part * static_cast<std::size_t>(comm.clique->size);
  std::vector<bool> all;
  if (call.input != nullptr) {
    all.push_back(is_registered(call.input, call.function == Function::reduce_scatter ? whole : part));
  }
  if (call.output != nullptr) {
    all.push_back(is_registered(call.output, call.function == Function::all_gather ? whole : part));
  }
  const auto registered = std::ranges::count(all, true);
  const Memory memory = registered == 0                                      ? Memory::other
                        : static_cast<std::size_t>(registered) == all.size() ? Memory::registered
                                                                             : Memory::mixed;
  return {kernel, call, memory};
}

void compare_memory(FakeNcclWorld& world, const std::vector<Memory>& memory) {
  const bool agrees =
      std::ranges::all_of(memory, [&](Memory each) { return each == memory[0] && each != Memory::mixed; });
  if (!agrees) world.violations.push_back("memory that is registered meets memory that is not");
  if (agrees && memory[0] == Memory::registered) ++world.registered_operations;
}

void add_memory_functions(NcclApi& api, const ProcessPointer& process) {
  api.mem_alloc = [p = process](void** memory, std::size_t bytes) { return mem_alloc(p, memory, bytes); };
  api.mem_free = [p = process](void* memory) { return mem_free(p, memory); };
  api.comm_register = [p = process](NcclComm comm, void* memory, std::size_t bytes, void** handle) {
    return comm_register(p, comm, memory, bytes, handle);
  };
  api.comm_deregister = [p = process](NcclComm comm, void* handle) {
    return comm_deregister(p, comm, handle);
  };
}

}  // namespace troupe::gpu
