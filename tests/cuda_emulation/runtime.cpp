#include <cuda_runtime.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "tests/cuda_emulation/block.hpp"
#include "tests/cuda_emulation/captures.hpp"
#include "tests/cuda_emulation/emulated_machine.hpp"
#include "tests/device_bytes/device_bytes.hpp"

using troupe::cuda_emulation::Captures;
using troupe::cuda_emulation::Machine;

namespace {

constexpr int kVersion = 13000;
constexpr int kLeastUrgent = 0;
constexpr int kMostUrgent = -5;
constexpr int kMultiprocessors = 4;
constexpr std::chrono::hours kNeverThatLong{1};

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
const troupe::gpu::ObserverSlot nobody;
// A task of the emulated device that throws is a defect of the emulation.
troupe::gpu::FailureSlot defect([](const troupe::core::Error& error) {
  CHECK(false, error.message.c_str());
});

Machine& machine() {
  return Machine::instance();
}

cudaError_t keep(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t begin(const char* function) {
  return keep(machine().begin(function));
}

/// The driver's cuDevicePrimaryCtxGetState.
int primary_context_state(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = machine().contexts().count(device) > 0 ? 1 : 0;
  return 0;
}

/// The driver's cuModuleGetLoadingMode.
int module_loading_mode(int* mode) {
  constexpr int kEager = 1;
  constexpr int kLazy = 2;
  *mode = machine().module_loading() == "EAGER" ? kEager : kLazy;
  return 0;
}

/// Work of a stream: nothing runs any more on a broken device.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) return keep(cudaErrorInvalidResourceHandle);
  if (Captures::instance().is_captured(stream)) return cudaSuccess;
  stream->queue.enqueue("", {}, [work = std::move(work)] {
    if (!machine().is_broken()) work();
  });
  return cudaSuccess;
}

}  // namespace

#define BEGIN(function) \
  if (const cudaError_t error = begin(function); error != cudaSuccess) return error
/// For what needs a context: that of the thread's current device, which is made if need be.
#define BEGIN_IN_CONTEXT(function)       \
  machine().use_context(current_device); \
  BEGIN(function)
/// For what might wait for, or be a part of, what is captured.
#define BEGIN_UNSAFE(function)                                                                    \
  BEGIN_IN_CONTEXT(function);                                                                     \
  if (const cudaError_t judged = Captures::instance().judge_unsafe_call(); judged != cudaSuccess) \
  return keep(judged)

namespace troupe::cuda_emulation {

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> thread) {
  BEGIN_IN_CONTEXT("cudaLaunchKernel");
  constexpr std::size_t kSharedBytes = std::size_t{48} << 10;
  constexpr unsigned kBlockThreads = 1024;
  constexpr unsigned kGridColumns = 0x7fff'ffff;
  constexpr unsigned kGridRows = 0xffff;
  if (grid.x == 0 || grid.x > kGridColumns || grid.y == 0 || grid.y > kGridRows || grid.z != 1 ||
      block.x == 0 || block.x > kBlockThreads || block.y != 1 || block.z != 1 ||
      shared_bytes > kSharedBytes) {
    return keep(cudaErrorInvalidValue);
  }
  machine().count_kernel(kernel);
  return enqueue(stream, [=, thread = std::move(thread)] { run_grid(grid, block, shared_bytes, thread); });
}

}  // namespace troupe::cuda_emulation

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  BEGIN("cudaGetDeviceCount");
  *count = machine().device_count();
  return keep(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  BEGIN("cudaGetDevice");
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  BEGIN("cudaSetDevice");
  if (device < 0 || device >= machine().device_count()) return keep(cudaErrorInvalidDevice);
  current_device = device;
  // CUDA does so since version 12.
  machine().use_context(device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  BEGIN("cudaGetDeviceProperties");
  if (device < 0 || device >= machine().device_count()) return keep(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  properties->totalGlobalMem = machine().memory_bytes();
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

/// Every other device has slow doubles, as those for graphics have.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int device) {
  BEGIN("cudaDeviceGetAttribute");
  if (device < 0 || device >= machine().device_count()) return keep(cudaErrorInvalidDevice);
  *value = device % 2 == 0 ? 2 : 64;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  BEGIN_IN_CONTEXT("cudaDeviceGetStreamPriorityRange");
  *least = kLeastUrgent;
  *greatest = kMostUrgent;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  // Without a driver this call succeeds and says 0.
  *version = machine().is_broken() ? 0 : kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned /*version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  BEGIN("cudaGetDriverEntryPointByVersion");
  *function = nullptr;
  if (std::string_view(symbol) == "cuDevicePrimaryCtxGetState")
    *function = reinterpret_cast<void*>(&primary_context_state);
  if (std::string_view(symbol) == "cuModuleGetLoadingMode")
    *function = reinterpret_cast<void*>(&module_loading_mode);
  const bool is_known = *function != nullptr;
  if (found != nullptr) *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  BEGIN_IN_CONTEXT("cudaMemGetInfo");
  *total_bytes = machine().memory_bytes();
  *free_bytes = machine().free_bytes();
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    default:
      return "cudaErrorOther";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an emulated failure";
  }
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  BEGIN_IN_CONTEXT("cudaStreamCreateWithPriority");
  // One that waits for the default stream's work would wait for what others do.
  if (flags != cudaStreamNonBlocking) return keep(cudaErrorInvalidValue);
  *stream = new CUstream_st{{{.name = "cuda"}, nobody, defect}, current_device, priority};
  machine().count_stream(1);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  machine().use_context(current_device);
  if (stream == nullptr) return keep(cudaErrorInvalidResourceHandle);
  delete stream;
  machine().count_stream(-1);
  return begin("cudaStreamDestroy");
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  BEGIN_UNSAFE("cudaStreamQuery");
  // A record behind which nothing stands is complete at once.
  troupe::gpu::HostEvent marker;
  stream->queue.record(&marker);
  return keep(marker.is_complete() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BEGIN_UNSAFE("cudaStreamSynchronize");
  CHECK(stream->queue.synchronize(kNeverThatLong), "an emulated stream ends its work within an hour");
  machine().trim_pools();
  return machine().is_broken() ? begin("cudaStreamSynchronize") : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  BEGIN_IN_CONTEXT("cudaStreamWaitEvent");
  if (stream == nullptr || event == nullptr) return keep(cudaErrorInvalidResourceHandle);
  stream->queue.wait(&event->marker);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  BEGIN_IN_CONTEXT("cudaStreamBeginCapture");
  return keep(Captures::instance().begin(stream, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  BEGIN_IN_CONTEXT("cudaStreamEndCapture");
  *graph = nullptr;
  return keep(Captures::instance().end(stream));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  BEGIN_IN_CONTEXT("cudaThreadExchangeStreamCaptureMode");
  *mode = Captures::instance().exchange_mode(*mode);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  BEGIN_IN_CONTEXT("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  (*event)->has_time = (flags & cudaEventDisableTiming) == 0;
  machine().count_event(1);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  machine().use_context(current_device);
  if (event == nullptr) return keep(cudaErrorInvalidResourceHandle);
  delete event;
  machine().count_event(-1);
  return begin("cudaEventDestroy");
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BEGIN_IN_CONTEXT("cudaEventRecord");
  if (stream == nullptr || event == nullptr) return keep(cudaErrorInvalidResourceHandle);
  if (event->has_time) {
    stream->queue.enqueue("", {}, [event] {
      std::lock_guard lock(event->mutex);
      event->time = troupe::gpu::host_now();
    });
  }
  stream->queue.record(&event->marker);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  BEGIN_UNSAFE("cudaEventQuery");
  if (event == nullptr) return keep(cudaErrorInvalidResourceHandle);
  return keep(event->marker.is_complete() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  BEGIN_UNSAFE("cudaEventElapsedTime");
  if (!first->has_time || !second->has_time) return keep(cudaErrorInvalidResourceHandle);
  if (!first->marker.is_complete() || !second->marker.is_complete()) return keep(cudaErrorNotReady);
  std::scoped_lock lock(first->mutex, second->mutex);
  constexpr troupe::gpu::DeviceTime kNeverRecorded{};
  if (first->time == kNeverRecorded || second->time == kNeverRecorded)
    return keep(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(second->time - first->time).count();
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  BEGIN_UNSAFE("cudaMemPoolCreate");
  *pool = new CUmemPoolHandle_st{properties->location.id};
  machine().add_pool(*pool);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  machine().use_context(current_device);
  machine().remove_pool(pool);
  delete pool;
  return begin("cudaMemPoolDestroy");
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  BEGIN_IN_CONTEXT("cudaMemPoolSetAttribute");
  const bool known = pool != nullptr && attribute == cudaMemPoolAttrReleaseThreshold && value != nullptr;
  if (!known) return keep(cudaErrorInvalidValue);
  machine().set_threshold(pool, *static_cast<std::uint64_t*>(value));
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  BEGIN_IN_CONTEXT("cudaMallocFromPoolAsync");
  if (pool == nullptr || stream == nullptr) return keep(cudaErrorInvalidValue);
  return keep(machine().allocate(Machine::Kind::device, bytes, memory, pool));
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  machine().use_context(current_device);
  // The machine takes it back in any case: what a broken device keeps is no leak.
  if (stream == nullptr || !machine().is_inside(memory, 1)) return keep(cudaErrorInvalidValue);
  stream->queue.enqueue("", {}, [memory] {
    CHECK(machine().release(Machine::Kind::device, memory) == cudaSuccess, "memory is freed once");
  });
  return begin("cudaFreeAsync");
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  BEGIN_UNSAFE("cudaMalloc");
  return keep(machine().allocate(Machine::Kind::device, bytes, memory));
}

cudaError_t cudaFree(void* memory) {
  machine().use_context(current_device);
  if (memory == nullptr) return cudaSuccess;
  const cudaError_t released = machine().release(Machine::Kind::device, memory);
  return released == cudaSuccess ? begin("cudaFree") : keep(released);
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  BEGIN_UNSAFE("cudaHostAlloc");
  return keep(machine().allocate(Machine::Kind::pinned, bytes, memory));
}

cudaError_t cudaFreeHost(void* memory) {
  machine().use_context(current_device);
  const cudaError_t released = machine().release(Machine::Kind::pinned, memory);
  return released == cudaSuccess ? begin("cudaFreeHost") : keep(released);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  BEGIN_IN_CONTEXT("cudaPointerGetAttributes");
  attributes->type = machine().is_device_memory(memory) ? cudaMemoryTypeDevice
                     : machine().is_pageable(memory)    ? cudaMemoryTypeUnregistered
                                                        : cudaMemoryTypeHost;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  BEGIN_IN_CONTEXT("cudaMemcpyAsync");
  if (kind != cudaMemcpyDefault || !machine().is_inside(destination, bytes) ||
      !machine().is_inside(source, bytes)) {
    return keep(cudaErrorInvalidValue);
  }
  const cudaError_t enqueued =
      enqueue(stream, [=] { troupe::tests::copy_bytes(destination, source, bytes); });
  if (enqueued != cudaSuccess || (!machine().is_pageable(destination) && !machine().is_pageable(source))) {
    return enqueued;
  }
  // The real one holds the caller up as well: it stages such memory through its own.
  machine().count_pageable_copy();
  return cudaStreamSynchronize(stream);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  BEGIN_IN_CONTEXT("cudaMemsetAsync");
  if (!machine().is_inside(memory, bytes)) return keep(cudaErrorInvalidValue);
  return enqueue(stream, [=] { troupe::tests::set_bytes(memory, value, bytes); });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                          std::size_t /*shared_bytes*/) {
  BEGIN_IN_CONTEXT("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  if (kernel == nullptr || threads <= 0) return keep(cudaErrorInvalidValue);
  *blocks = 2;
  return cudaSuccess;
}

}  // extern "C"
