#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "core/result.hpp"

namespace troupe::gpu {

/// Converts the status of a CUDA call to an error that names the call and the device. Errc::out_of_memory and
/// Errc::unavailable (no driver, no GPU) are distinguished; everything else is Errc::internal.
core::Error cuda_error(cudaError_t status, std::string_view call, int device);
core::Result<void> cuda_result(cudaError_t status, std::string_view call, int device);

/// Makes a device the calling thread's current one, and finally restores the previous one if anything in this
/// process uses that. A thread that has not used CUDA has device 0 as its current one, which may be another
/// rank's: it keeps the new one.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool is_changed_ = false;
};

}  // namespace troupe::gpu
