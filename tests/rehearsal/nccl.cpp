// NCCL's functions as a library for rehearsals: ranks are processes of one host, and devices are emulated.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/world/environment.hpp"
#include "core/errors.hpp"
#include "gpu/collective/nccl/abi.hpp"
#include "posix/entropy.hpp"
#include "tests/rehearsal/communicator.hpp"

using troupe::gpu::NativeStream;
using troupe::gpu::NcclCall;
using troupe::gpu::NcclComm;
using troupe::gpu::NcclConfig;
using troupe::gpu::NcclDataType;
using troupe::gpu::NcclReduction;
using troupe::gpu::NcclStatus;
using troupe::gpu::NcclUniqueId;
using troupe::rehearsal::Communicator;
using troupe::rehearsal::Mailboxes;
namespace posix = troupe::posix;
using Function = NcclCall::Function;

struct ncclComm {
  std::shared_ptr<Communicator> self;  // and of its kernels
  bool is_finalizing = false;
};

namespace {

constexpr int kVersion = 22809;

thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::map<NcclComm, std::vector<Communicator::Launch>> grouped;

NcclStatus fail(NcclStatus status, std::string why) {
  last_error = std::move(why);
  return status;
}

NcclStatus launch(NcclComm comm, std::vector<Communicator::Launch> calls) {
  if (comm->self->launch(std::move(calls))) return NcclStatus::success;
  return fail(NcclStatus::unhandled_cuda_error, "the program's runtime refuses cudaLaunchHostFunc");
}

NcclStatus call(NcclComm comm, const NcclCall& made, NativeStream stream) {
  if (comm == nullptr || made.peer < 0 || made.peer >= comm->self->size())
    return fail(NcclStatus::invalid_argument, "no such communicator or peer");
  if (group_depth == 0) return launch(comm, {{made, stream}});
  grouped[comm].push_back({made, stream});
  return NcclStatus::success;
}

template <class Function>
Function of_runtime(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

extern "C" {

NcclStatus ncclGetVersion(int* version) {
  *version = kVersion;
  return NcclStatus::success;
}

NcclStatus ncclGetUniqueId(NcclUniqueId* id) {
  *id = {};
  const std::string name = "/troupe-nccl-" + std::to_string(posix::entropy());
  std::memcpy(id->bytes, name.data(), name.size());
  return NcclStatus::success;
}

NcclStatus ncclCommInitRankConfig(NcclComm* comm, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  *comm = nullptr;
  if (rank < 0 || rank >= size || config->blocking != 0)
    return fail(NcclStatus::invalid_argument, "a rank beyond the size, or a communicator that blocks");
  auto mailboxes = Mailboxes::open(id.bytes, size);
  if (!mailboxes) return fail(NcclStatus::system_error, mailboxes.error().message);
  *comm = new ncclComm{std::make_shared<Communicator>(*std::move(mailboxes), rank, size)};
  return NcclStatus::in_progress;
}

NcclStatus ncclCommGetAsyncError(NcclComm comm, NcclStatus* state) {
  const bool is_busy = !comm->self->have_all_joined() || (comm->is_finalizing && !comm->self->is_idle());
  *state = is_busy ? NcclStatus::in_progress : NcclStatus::success;
  return NcclStatus::success;
}

NcclStatus ncclCommFinalize(NcclComm comm) {
  comm->is_finalizing = true;
  return NcclStatus::in_progress;
}

NcclStatus ncclCommDestroy(NcclComm comm) {
  delete comm;
  return NcclStatus::success;
}

/// Never returns in the process whose TROUPE_SLOT is that of TROUPE_EMULATED_NCCL_STUCK.
NcclStatus ncclCommAbort(NcclComm comm) {
  const auto variable = troupe::actors::process_variables();
  const auto stuck = variable("TROUPE_EMULATED_NCCL_STUCK");
  while (stuck && variable("TROUPE_SLOT") == stuck) pause();
  comm->self->abort();
  delete comm;
  return NcclStatus::success;
}

const char* ncclGetLastError(NcclComm /*comm*/) {
  return last_error.c_str();
}

NcclStatus ncclGroupStart() {
  ++group_depth;
  return NcclStatus::success;
}

NcclStatus ncclGroupEnd() {
  if (--group_depth > 0) return NcclStatus::success;
  NcclStatus status = NcclStatus::success;
  for (auto& [comm, calls] : std::exchange(grouped, {})) {
    const NcclStatus launched = launch(comm, std::move(calls));
    if (status == NcclStatus::success) status = launched;
  }
  return status;
}

NcclStatus ncclAllReduce(const void* in, void* out, std::size_t count, NcclDataType type,
                         NcclReduction reduction, NcclComm comm, NativeStream stream) {
  return call(comm, {Function::all_reduce, in, out, count, type, reduction, 0}, stream);
}

NcclStatus ncclReduce(const void* in, void* out, std::size_t count, NcclDataType type,
                      NcclReduction reduction, int root, NcclComm comm, NativeStream stream) {
  return call(comm, {Function::reduce, in, out, count, type, reduction, root}, stream);
}

NcclStatus ncclReduceScatter(const void* in, void* out, std::size_t count, NcclDataType type,
                             NcclReduction reduction, NcclComm comm, NativeStream stream) {
  return call(comm, {Function::reduce_scatter, in, out, count, type, reduction, 0}, stream);
}

NcclStatus ncclAllGather(const void* in, void* out, std::size_t count, NcclDataType type, NcclComm comm,
                         NativeStream stream) {
  return call(comm, {Function::all_gather, in, out, count, type, NcclReduction::sum, 0}, stream);
}

NcclStatus ncclBroadcast(const void* in, void* out, std::size_t count, NcclDataType type, int root,
                         NcclComm comm, NativeStream stream) {
  return call(comm, {Function::broadcast, in, out, count, type, NcclReduction::sum, root}, stream);
}

NcclStatus ncclSend(const void* in, std::size_t count, NcclDataType type, int peer, NcclComm comm,
                    NativeStream stream) {
  return call(comm, {Function::send, in, nullptr, count, type, NcclReduction::sum, peer}, stream);
}

NcclStatus ncclRecv(void* out, std::size_t count, NcclDataType type, int peer, NcclComm comm,
                    NativeStream stream) {
  return call(comm, {Function::receive, nullptr, out, count, type, NcclReduction::sum, peer}, stream);
}

NcclStatus ncclMemAlloc(void** memory, std::size_t bytes) {
  static const auto allocate = of_runtime<int (*)(void**, std::size_t)>("cudaMalloc");
  return allocate != nullptr && allocate(memory, bytes) == 0 ? NcclStatus::success
                                                             : NcclStatus::unhandled_cuda_error;
}

NcclStatus ncclMemFree(void* memory) {
  static const auto release = of_runtime<int (*)(void*)>("cudaFree");
  return release != nullptr && release(memory) == 0 ? NcclStatus::success : NcclStatus::unhandled_cuda_error;
}

NcclStatus ncclCommRegister(NcclComm /*comm*/, void* memory, std::size_t /*bytes*/, void** handle) {
  *handle = memory;
  return NcclStatus::success;
}

NcclStatus ncclCommDeregister(NcclComm /*comm*/, void* /*handle*/) {
  return NcclStatus::success;
}

}  // extern "C"
