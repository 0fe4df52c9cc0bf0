#include "gpu/cuda/failure.hpp"

#include <utility>

namespace troupe::gpu {

std::optional<core::Error> DeviceFailure::get() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void DeviceFailure::set(core::Error error) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::move(error);
    is_set_.store(true, std::memory_order_release);
  }
  if (on_set_) on_set_();
}

}  // namespace troupe::gpu
