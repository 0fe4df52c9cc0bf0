#include "gpu/cuda/memory_pool.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/errors.hpp"
#include "gpu/cuda/cuda_event.hpp"
#include "gpu/cuda/status.hpp"
#include "gpu/host/memory.hpp"

namespace troupe::gpu {
namespace {

/// Time for an empty stream to write zeros.
constexpr std::chrono::seconds kZeroing{60};
/// Unused memory that stays with the pool: as much as sums of many lanes take and give back in every step.
constexpr std::uint64_t kKept = std::uint64_t{256} << 20;

}  // namespace

core::Result<std::unique_ptr<MemoryPool>> MemoryPool::create(CudaContext& context) {
  const int device = context.device();
  const DeviceGuard guard(device);
  std::unique_ptr<MemoryPool> pool(new MemoryPool(context));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  TRY(cuda_result(cudaMemPoolCreate(&pool->pool_, &properties), "cudaMemPoolCreate", device));
  std::uint64_t kept = std::min<std::uint64_t>(kKept, context.info.memory_bytes / 64);
  TRY(cuda_result(cudaMemPoolSetAttribute(pool->pool_, cudaMemPoolAttrReleaseThreshold, &kept),
                  "cudaMemPoolSetAttribute", device));
  TRY(cuda_result(cudaStreamCreateWithPriority(&pool->stream_, cudaStreamNonBlocking, 0),
                  "cudaStreamCreateWithPriority", device));
  context.pool = pool->pool_;
  return pool;
}

MemoryPool::~MemoryPool() {
  const DeviceGuard guard(context_.device());
  const auto drained = wait_for_stream();
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  // A pool with outstanding work is left until the process ends.
  if (pool_ != nullptr && (drained || context_.failure.is_set())) (void)cudaMemPoolDestroy(pool_);
}

core::Result<Buffer> MemoryPool::allocate(std::size_t bytes) {
  if (bytes == 0) return Buffer();
  TRY(context_.health());
  const DeviceGuard guard(context_.device());
  void* memory = nullptr;
  const bool fits = bytes <= context_.info.memory_bytes;
  const cudaError_t status =
      fits ? cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_) : cudaErrorMemoryAllocation;
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return core::fail(
        core::Errc::out_of_memory,
        "expected {} bytes on device {} ({}, {} bytes in all), but it has no room for them; use smaller "
        "buffers, fewer ranks per device, or a device with more memory",
        bytes, context_.device(), context_.info.name, context_.info.memory_bytes);
  }
  TRY(cuda_result(status, "cudaMallocFromPoolAsync", context_.device()));
  Buffer buffer({static_cast<std::byte*>(memory), bytes}, [this](BufferView view) { release(view); });
  TRY(cuda_result(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync", context_.device()));
  // From here on any stream may use it.
  TRY(wait_for_stream());
  return buffer;
}

void MemoryPool::release(BufferView view) {
  const DeviceGuard guard(context_.device());
  if (!context_.check(cudaFreeAsync(view.data, stream_), "cudaFreeAsync")) return;
  // A pool gives back when the host has waited for the stream; that takes no time once it is known to have
  // ended.
  if (wait_for_stream()) context_.check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

core::Result<void> MemoryPool::wait_for_stream() {
  if (stream_ == nullptr) return {};
  CudaEvent zeroed(context_, TRY(context_.events.take()));
  TRY(cuda_result(cudaEventRecord(zeroed.native(), stream_), "cudaEventRecord", context_.device()));
  zeroed.set_recorded();
  return zeroed.wait(kZeroing);
}

StagingPool::~StagingPool() {
  const DeviceGuard guard(context_.device());
  for (const auto& [bytes, block] : free_) (void)cudaFreeHost(block);
}

core::Result<Buffer> StagingPool::allocate(std::size_t bytes) {
  if (bytes == 0) return Buffer();
  TRY(context_.health());
  const DeviceGuard guard(context_.device());
  std::lock_guard lock(mutex_);
  std::byte* block = nullptr;
  if (const auto found = free_.find(bytes); found != free_.end()) {
    block = found->second;
    free_.erase(found);
  } else {
    make_room(bytes);
    if (bytes > budget_bytes_ - pinned_bytes_) {
      return core::fail(core::Errc::out_of_memory,
                        "expected {} bytes of staging memory for device {}, but {} of its {} bytes are in "
                        "use; use fewer or "
                        "smaller staging buffers, or a larger budget",
                        bytes, context_.device(), lent_bytes_, budget_bytes_);
    }
    void* memory = nullptr;
    TRY(cuda_result(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc",
                    context_.device()));
    block = static_cast<std::byte*>(memory);
    pinned_bytes_ += bytes;
  }
  lent_bytes_ += bytes;
  std::memset(block, 0, bytes);
  return Buffer({block, bytes}, [this](BufferView view) { give_back(view); });
}

void StagingPool::give_back(BufferView block) {
  std::lock_guard lock(mutex_);
  lent_bytes_ -= block.bytes;
  free_.emplace(block.bytes, block.data);
}

void StagingPool::make_room(std::size_t bytes) {
  while (!free_.empty() && bytes > budget_bytes_ - pinned_bytes_) {
    const auto block = free_.begin();
    (void)cudaFreeHost(block->second);
    pinned_bytes_ -= block->first;
    free_.erase(block);
  }
}

}  // namespace troupe::gpu
