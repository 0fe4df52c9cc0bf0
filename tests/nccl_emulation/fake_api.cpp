// The functions of the table.
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "tests/nccl_emulation/fake_world.hpp"

namespace troupe::gpu {
namespace {

using Function = NcclCall::Function;
using State = ncclComm::State;
using ProcessPointer = std::shared_ptr<FakeNcclProcess>;

NcclStatus violate(FakeNcclWorld& world, NcclStatus status, std::string what) {
  world.violations.push_back(std::move(what));
  return status;
}

NcclStatus get_unique_id(const ProcessPointer& process, NcclUniqueId* id) {
  const FakeNcclLock lock(*process->world);
  *id = {};
  const std::string text = "id " + std::to_string(process->world->ids++);
  std::memcpy(id->bytes, text.data(), text.size());
  process->world->cliques.emplace(text, std::make_shared<FakeClique>());
  return NcclStatus::success;
}

NcclStatus join(const ProcessPointer& process, NcclComm* comm, int size, const NcclUniqueId& id, int rank,
                const NcclConfig& config) {
  const FakeNcclLock lock(*process->world);
  FakeNcclWorld& world = *process->world;
  *comm = nullptr;
  if (config.magic != 0xcafebeef || config.size != sizeof config || rank < 0 || rank >= size) {
    return NcclStatus::invalid_argument;
  }
  if (size == 1) (void)violate(world, NcclStatus::success, "a communicator of one member");
  if (config.blocking != 0) return violate(world, NcclStatus::invalid_argument, "a blocking communicator");
  const auto found = world.cliques.find(id.bytes);
  if (found == world.cliques.end() || found->second->members.contains(rank)) {
    return violate(world, NcclStatus::invalid_usage, "a unique id that is unknown or used twice");
  }
  process->seen = {config.blocking, config.min_ctas, config.max_ctas, config.split_share, config.comm_name};
  world.communicators.push_back(std::make_unique<ncclComm>());
  *comm = world.communicators.back().get();
  (*comm)->process = process;
  (*comm)->clique = found->second;
  (*comm)->rank = rank;
  (*comm)->name = config.comm_name;
  (*comm)->polls_left = world.options.polls_in_progress;
  found->second->size = size;
  found->second->members[rank] = *comm;
  ++world.live;
  return NcclStatus::in_progress;
}

/// What a call needs connections for: those of a peer, or of the algorithm that is best for this many bytes.
std::string need_of(const NcclCall& call) {
  if (call.function == Function::send) return "ncclSend to " + std::to_string(call.peer);
  if (call.function == Function::receive) return "ncclRecv from " + std::to_string(call.peer);
  const auto size = std::bit_width(call.count * size_of(call.type)) / 2;
  return std::string(name_of(call.function)) + " of size " + std::to_string(size);
}

/// Whether the communicator must first connect its members.
bool connect(FakeNcclProcess& process, ncclComm& comm, const std::vector<FakeKernel::Call>& calls) {
  bool is_new = false;
  for (const auto& each : calls) {
    const auto need = need_of(each.call);
    if (!comm.connected.insert(need).second) continue;
    process.connections.push_back(comm.name + ": " + need);
    is_new = true;
  }
  return is_new;
}

NcclStatus launch(const ProcessPointer& process, ncclComm& comm, std::vector<FakeKernel::Call> calls) {
  auto kernel = std::make_shared<FakeKernel>();
  kernel->comm = &comm;
  for (const auto& each : calls) kernel->streams.insert(each.stream);
  const bool connects = connect(*process, comm, calls);
  kernel->calls = std::move(calls);
  comm.pending = std::move(kernel);
  comm.polls_left = process->world->options.polls_in_progress * (connects ? 2 : 1);
  comm.state = State::launching;
  process->issuer = std::this_thread::get_id();
  return NcclStatus::in_progress;
}

/// What NCCL checks before it takes a call.
NcclStatus examine(const ProcessPointer& process, const ncclComm& comm, const NcclCall& call) {
  FakeNcclWorld& world = *process->world;
  const auto self = std::this_thread::get_id();
  if (process->dead) return NcclStatus::internal_error;
  if (comm.state == State::gone) {
    return violate(world, NcclStatus::invalid_argument, "a launch on a communicator that is gone");
  }
  if (process->issuer && *process->issuer != self) {
    return violate(world, NcclStatus::invalid_usage, "two threads launch at once");
  }
  if (comm.state != State::idle) {
    return violate(world, NcclStatus::invalid_usage, "a launch while another call is in progress");
  }
  // A communicator keeps its first error, and answers every later call with it.
  if (comm.async != NcclStatus::success) return comm.async;
  if (process->next_call != NcclStatus::success) {
    return std::exchange(process->next_call, NcclStatus::success);
  }
  const bool reads = call.function != Function::receive;
  const bool writes =
      call.function != Function::send && (call.function != Function::reduce || call.peer == comm.rank);
  if ((reads && call.input == nullptr) || (writes && call.output == nullptr)) {
    return NcclStatus::invalid_argument;
  }
  return call.peer < 0 || call.peer >= comm.clique->size ? NcclStatus::invalid_argument : NcclStatus::success;
}

NcclStatus call(const ProcessPointer& process, NcclComm comm, const NcclCall& made, NativeStream stream) {
  const FakeNcclLock lock(*process->world);
  const NcclStatus examined = examine(process, *comm, made);
  auto& group = process->groups[std::this_thread::get_id()];
  if (examined != NcclStatus::success) {
    // ncclEnqueueCheck does this on communicators that do not block.
    if (comm->state != State::gone && !process->dead) comm->async = examined;
    if (group.depth > 0) group.error = examined;
    return examined;
  }
  if (group.depth == 0) return launch(process, *comm, {{made, stream}});
  process->issuer = std::this_thread::get_id();
  group.calls[comm].push_back({made, stream});
  return NcclStatus::success;
}

NcclStatus group_start(const ProcessPointer& process) {
  const FakeNcclLock lock(*process->world);
  ++process->groups[std::this_thread::get_id()].depth;
  return NcclStatus::success;
}

NcclStatus group_end(const ProcessPointer& process) {
  const FakeNcclLock lock(*process->world);
  auto& group = process->groups[std::this_thread::get_id()];
  if (group.depth == 0) return violate(*process->world, NcclStatus::invalid_usage, "an end without a start");
  if (--group.depth > 0) return NcclStatus::success;
  const auto ended = std::exchange(group, {});
  if (process->issuer == std::this_thread::get_id()) process->issuer.reset();
  if (ended.error != NcclStatus::success) return ended.error;
  for (const auto& [comm, calls] : ended.calls) launch(process, *comm, calls);
  return ended.calls.empty() ? NcclStatus::success : NcclStatus::in_progress;
}

/// The state of the communicator; a kernel whose launch just ended is to be put on its streams.
FakeKernelPointer advance(const ProcessPointer& process, ncclComm& comm, NcclStatus* state) {
  *state = NcclStatus::in_progress;
  if (comm.async != NcclStatus::success) {
    *state = comm.async;
    return nullptr;
  }
  if (comm.state == State::joining && static_cast<int>(comm.clique->members.size()) < comm.clique->size) {
    return nullptr;
  }
  if (comm.state == State::finalizing && has_kernels(comm)) return nullptr;
  if (comm.state == State::launching && !process->connects) return nullptr;
  if (comm.state != State::idle && comm.state != State::finalized && comm.polls_left-- > 0) return nullptr;
  *state = NcclStatus::success;
  if (comm.state == State::finalizing) comm.state = State::finalized;
  if (comm.state == State::joining || comm.state == State::launching) comm.state = State::idle;
  if (comm.pending == nullptr) return nullptr;
  process->issuer.reset();
  process->kernels.push_back(comm.pending);
  return std::exchange(comm.pending, nullptr);
}

NcclStatus get_async_error(const ProcessPointer& process, NcclComm comm, NcclStatus* state) {
  FakeKernelPointer launched;
  {
    const FakeNcclLock lock(*process->world);
    if (process->dead) return NcclStatus::internal_error;
    if (comm->state == State::gone) {
      return violate(*process->world, NcclStatus::invalid_argument,
                     "a question to a communicator that is gone");
    }
    launched = advance(process, *comm, state);
  }
  if (launched == nullptr) return NcclStatus::success;
  for (const NativeStream stream : launched->streams) {
    process->run_on_stream(stream, [launched, world = process->world](Completion completion) {
      const FakeNcclLock lock(*world);
      if (world->closed) return world->to_complete.push_back(std::move(completion));
      arrive_on_stream(launched, std::move(completion));
    });
  }
  return NcclStatus::success;
}

NcclStatus finalize(const ProcessPointer& process, NcclComm comm) {
  const FakeNcclLock lock(*process->world);
  if (process->dead) return NcclStatus::internal_error;
  if (comm->async != NcclStatus::success) return comm->async;
  if (comm->state != State::idle) {
    return violate(*process->world, NcclStatus::invalid_usage,
                   "a finalize that is not the communicator's turn");
  }
  if (!comm->registrations.empty()) {
    (void)violate(*process->world, NcclStatus::success, "a finalize before the end of registrations");
  }
  comm->state = State::finalizing;
  return NcclStatus::in_progress;
}

NcclStatus destroy(const ProcessPointer& process, NcclComm comm) {
  const FakeNcclLock lock(*process->world);
  if (comm->state != State::finalized) {
    return violate(*process->world, NcclStatus::invalid_usage, "a destroy before the end of finalize");
  }
  remove_communicator(*comm);
  return process->destroy_status;
}

NcclStatus abort(const ProcessPointer& process, NcclComm comm) {
  FakeNcclLock lock(*process->world);
  process->world->changed.wait(lock.lock(), [&] { return process->world->closed || !process->aborts_block; });
  if (process->world->closed) return NcclStatus::success;
  if (comm->state == State::gone) {
    if (process->dead) return NcclStatus::success;
    return violate(*process->world, NcclStatus::invalid_argument, "an abort of a communicator that is gone");
  }
  drop_kernels(*comm);
  remove_communicator(*comm);
  return NcclStatus::success;
}

}  // namespace

NcclApi FakeNccl::Process::api(int version, std::set<std::string> newer) const {
  NcclApi api;
  const auto p = state_;
  api.get_version = [version](int* found) { return *found = version, NcclStatus::success; };
  api.get_unique_id = [p](NcclUniqueId* id) { return get_unique_id(p, id); };
  api.comm_init_rank_config = [p](NcclComm* comm, int size, NcclUniqueId id, int rank, NcclConfig* config) {
    return join(p, comm, size, id, rank, *config);
  };
  api.comm_finalize = [p](NcclComm comm) { return finalize(p, comm); };
  api.comm_destroy = [p](NcclComm comm) { return destroy(p, comm); };
  api.comm_abort = [p](NcclComm comm) { return abort(p, comm); };
  api.comm_get_async_error = [p](NcclComm comm, NcclStatus* state) {
    return get_async_error(p, comm, state);
  };
  api.get_last_error = [](NcclComm) { return "the fake's last words"; };
  api.group_start = [p] { return group_start(p); };
  api.group_end = [p] { return group_end(p); };
  api.all_reduce = [p](const void* in, void* out, std::size_t count, NcclDataType type, NcclReduction op,
                       NcclComm comm, NativeStream stream) {
    return call(p, comm, {Function::all_reduce, in, out, count, type, op, 0}, stream);
  };
  api.reduce = [p](const void* in, void* out, std::size_t count, NcclDataType type, NcclReduction op,
                   int root, NcclComm comm, NativeStream stream) {
    return call(p, comm, {Function::reduce, in, out, count, type, op, root}, stream);
  };
  api.reduce_scatter = [p](const void* in, void* out, std::size_t count, NcclDataType type, NcclReduction op,
                           NcclComm comm, NativeStream stream) {
    return call(p, comm, {Function::reduce_scatter, in, out, count, type, op, 0}, stream);
  };
  api.all_gather = [p](const void* in, void* out, std::size_t count, NcclDataType type, NcclComm comm,
                       NativeStream stream) {
    return call(p, comm, {Function::all_gather, in, out, count, type, NcclReduction::sum, 0}, stream);
  };
  api.broadcast = [p](const void* in, void* out, std::size_t count, NcclDataType type, int root,
                      NcclComm comm, NativeStream stream) {
    return call(p, comm, {Function::broadcast, in, out, count, type, NcclReduction::sum, root}, stream);
  };
  api.send = [p](const void* in, std::size_t count, NcclDataType type, int peer, NcclComm comm,
                 NativeStream stream) {
    return call(p, comm, {Function::send, in, nullptr, count, type, NcclReduction::sum, peer}, stream);
  };
  api.receive = [p](void* out, std::size_t count, NcclDataType type, int peer, NcclComm comm,
                    NativeStream stream) {
    return call(p, comm, {Function::receive, nullptr, out, count, type, NcclReduction::sum, peer}, stream);
  };
  constexpr int kOldestThatRegisters = 21900;
  if (version >= kOldestThatRegisters) {
    add_memory_functions(api, p);
    newer.insert({"ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"});
  }
  api.has = [newer = std::move(newer)](const char* name) { return newer.contains(name); };
  return api;
}

}  // namespace troupe::gpu
