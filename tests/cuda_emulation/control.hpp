#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cuda_emulation {

/// What the emulated machine is. Thread safe; call reset() between tests, when nothing of CUDA is alive.

/// One healthy device of 1 GiB, nothing counted, no failure planned. CHECKs that nothing is leaked: streams,
/// events, pools and memory.
void reset();
void set_device_count(int count);
void set_memory_bytes(std::size_t bytes);
/// No driver: every call fails as it does on a machine without a GPU.
void remove_driver();
/// The device is broken: every call, and all work not yet begun, ends in `error` from now on.
void break_device(cudaError_t error);
/// The `n`-th call from now on (1 is the next) of the function of this name fails, once.
void fail_call(std::string_view function, int n, cudaError_t error);
/// Before the `n`-th call from now on of the function of this name, the calling thread calls `then`, once.
void interrupt_call(std::string_view function, int n, std::function<void()> then);
/// Calls of the function of this name since reset().
std::uint64_t calls(std::string_view function);

/// How many kernels have been launched since reset(), each counted once.
std::size_t kernels();

/// CUDA_MODULE_LOADING as the first call since reset() found it, which is when CUDA reads it; empty if unset.
std::string module_loading();

/// The devices that something of this process has used since reset(), if only to make them current: each
/// costs a real GPU hundreds of MiB, and no other process may come where the GPU admits one.
std::set<int> contexts();

/// What is alive.
struct Alive {
  int streams = 0;
  int events = 0;
  int pools = 0;
  std::size_t device_bytes = 0;
  std::size_t pinned_bytes = 0;

  friend bool operator==(const Alive&, const Alive&) = default;
};
Alive alive();
/// For a test of what is given up: it is never given back.
void forget_what_is_alive();

/// Copies from or to memory of the host which is not pinned; on a real device they stop the calling thread.
std::uint64_t pageable_copies();
bool is_device_memory(const void* memory);
/// The priority a stream was created with, in CUDA's numbers: less is more urgent.
int priority_of(cudaStream_t stream);

/// A tool that listens to NVTX, for devices opened from now on.
void attach_profiler();
/// The ranges that have ended since the last call, in that order: "troupe.conductor: BucketReady".
std::vector<std::string> take_ranges();
/// CHECKs that every range has ended.
void detach_profiler();

}  // namespace troupe::cuda_emulation
