#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/cuda/cuda_context.hpp"

namespace troupe::gpu {

/// Memory of a device, from a CUDA pool. What is released returns to the device, where NCCL, cuBLAS and the
/// trainer's own allocator find it; only the little that kernels take and give back in every step stays, so
/// that a step allocates nothing and nothing waits for the whole device. Thread-safe.
class MemoryPool {
 public:
  static core::Result<std::unique_ptr<MemoryPool>> create(CudaContext& context);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  core::Result<Buffer> allocate(std::size_t bytes);
  /// Memory is allocated and released on this stream, which is otherwise idle.
  cudaStream_t stream() const { return stream_; }

 private:
  explicit MemoryPool(CudaContext& context) : context_(context) {}
  void release(BufferView view);
  core::Result<void> wait_for_stream();

  CudaContext& context_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

/// Pinned host memory, which the device copies from and to without the calling thread. Pinning takes
/// milliseconds and may wait for the device, so returned blocks are kept for the next request of their size;
/// they are unpinned only to make room within the budget. Thread-safe.
class StagingPool {
 public:
  StagingPool(CudaContext& context, std::size_t budget_bytes)
      : context_(context), budget_bytes_(budget_bytes) {}
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  core::Result<Buffer> allocate(std::size_t bytes);

 private:
  void give_back(BufferView block);
  /// Unpins free blocks until `bytes` more fit into the budget, if possible. mutex_ must be held.
  void make_room(std::size_t bytes);

  CudaContext& context_;
  const std::size_t budget_bytes_;
  std::mutex mutex_;  // guards everything below
  std::size_t pinned_bytes_ = 0;
  std::size_t lent_bytes_ = 0;
  std::multimap<std::size_t, std::byte*> free_;
};

}  // namespace troupe::gpu
