#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "gpu/cuda/cuda_context.hpp"
#include "gpu/cuda/event_pool.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

/// A CUDA event without timing, with the meaning that gpu/stream.hpp gives events.
class CudaEvent final : public EventState {
 public:
  CudaEvent(CudaContext& context, PooledEvent event) : context_(context), event_(std::move(event)) {}

  /// Never true once the device has failed, unless nothing was recorded.
  bool is_complete() const override;
  core::Result<void> wait(std::chrono::nanoseconds deadline) override;

  cudaEvent_t native() const { return event_.native(); }
  /// A pooled event may still represent an earlier user's record.
  bool is_recorded() const { return is_recorded_.load(std::memory_order_acquire); }
  void set_recorded() { is_recorded_.store(true, std::memory_order_release); }

 private:
  CudaContext& context_;
  PooledEvent event_;
  std::atomic<bool> is_recorded_{false};
};

/// Another device's event is a programming error.
CudaEvent& cuda_event(EventView event);

}  // namespace troupe::gpu
