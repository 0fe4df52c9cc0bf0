#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "gpu/host/host_event.hpp"
#include "gpu/host/host_stream.hpp"
#include "tests/cuda_emulation/control.hpp"

struct CUstream_st {
  troupe::gpu::HostStream queue;
  int device;
  int priority;
};

struct CUevent_st {
  troupe::gpu::HostEvent marker;
  bool has_time = false;
  std::mutex mutex;  // guards time
  troupe::gpu::DeviceTime time{};
};

struct CUmemPoolHandle_st {
  int device;
  std::size_t threshold = 0;  ///< what of the unused memory stays when something is waited for
  std::size_t unused = 0;     ///< freed, and not yet the machine's again
};

namespace troupe::cuda_emulation {

/// The emulated machine, one per process as the real one is.
class Machine {
 public:
  static Machine& instance();

  void reset();
  void set_device_count(int count);
  void set_memory_bytes(std::size_t bytes);
  void fail_all(cudaError_t error);
  void fail_call(std::string_view function, int n, cudaError_t error);
  void interrupt_call(std::string_view function, int n, std::function<void()> then);
  std::uint64_t calls(std::string_view function);
  Alive alive();
  void forget_what_is_alive();
  std::uint64_t pageable_copies();
  bool is_device_memory(const void* memory);

  /// Begins every call of the runtime: counts it, and says how it fails.
  cudaError_t begin(std::string_view function);
  /// A call needs the context of this device, which exists from then on.
  void use_context(int device);
  std::set<int> contexts();
  std::string module_loading();
  bool is_broken();
  int device_count();
  std::size_t memory_bytes();
  void count_stream(int change);
  void count_event(int change);
  void add_pool(cudaMemPool_t pool);
  void remove_pool(cudaMemPool_t pool);
  void count_kernel(const void* kernel);
  std::size_t kernels();

  enum class Kind { device, pinned };
  /// From the pool, if there is one.
  cudaError_t allocate(Kind kind, std::size_t bytes, void** memory, cudaMemPool_t pool = nullptr);
  cudaError_t release(Kind kind, void* memory);
  void set_threshold(cudaMemPool_t pool, std::size_t bytes);
  /// The host has waited: pools give the machine what they need not keep.
  void trim_pools();
  std::size_t free_bytes();
  /// False when a range begins in memory of the device's, or pinned memory, and ends beyond it.
  bool is_inside(const void* memory, std::size_t bytes);
  bool is_pageable(const void* memory);
  void count_pageable_copy();

 private:
  struct Range {
    std::size_t bytes;
    Kind kind;
    cudaMemPool_t pool;
  };
  struct Plan {
    int remaining;
    cudaError_t error;
  };
  struct Interruption {
    int remaining;
    std::function<void()> then;
  };

  void interrupt(std::string_view function);

  std::optional<std::pair<std::uintptr_t, Range>> find(const void* memory);
  std::size_t room() const;

  std::mutex mutex_;  // guards all below
  int devices_ = 1;
  std::size_t memory_bytes_ = std::size_t{1} << 30;
  cudaError_t failure_ = cudaSuccess;
  std::map<std::string, Plan, std::less<>> plans_;
  std::map<std::string, Interruption, std::less<>> interruptions_;
  std::map<std::string, std::uint64_t, std::less<>> calls_;
  std::map<std::uintptr_t, Range> ranges_;
  std::set<cudaMemPool_t> pools_;
  Alive alive_;
  std::set<int> contexts_;
  std::set<const void*> kernels_;
  std::string module_loading_;
  std::uint64_t pageable_copies_ = 0;
};

}  // namespace troupe::cuda_emulation
