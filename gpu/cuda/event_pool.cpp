#include "gpu/cuda/event_pool.hpp"

#include "core/errors.hpp"
#include "gpu/cuda/status.hpp"

namespace troupe::gpu {

void PooledEvent::give_back() {
  if (pool_ != nullptr) pool_->give(event_);
  pool_ = nullptr;
  event_ = nullptr;
}

EventPool::~EventPool() {
  const DeviceGuard guard(device_);
  for (cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

core::Result<PooledEvent> EventPool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      PooledEvent event(*this, free_.back());
      free_.pop_back();
      return event;
    }
  }
  const DeviceGuard guard(device_);
  cudaEvent_t event = nullptr;
  const unsigned flags = timing_ == Timing::with ? cudaEventDefault : cudaEventDisableTiming;
  TRY(cuda_result(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags", device_));
  return PooledEvent(*this, event);
}

void EventPool::give(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  free_.push_back(event);
}

}  // namespace troupe::gpu
