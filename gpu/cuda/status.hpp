#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string_view>

#include "core/result.hpp"

namespace troupe::gpu {

/// Converts the status of a CUDA call to an error that names the call and the device. Errc::out_of_memory and
/// Errc::unavailable (no driver, no GPU) are distinguished; everything else is Errc::internal.
core::Error cuda_error(cudaError_t status, std::string_view call, int device);
core::Result<void> cuda_result(cudaError_t status, std::string_view call, int device);

/// The status of a query. That something is not ready yet is no error, but CUDA keeps it as the thread's last
/// one, which the trainer would find after its next launch.
cudaError_t queried(cudaError_t status);

/// Lets the calling thread query, wait and allocate while a graph is being captured, here or in another
/// thread. Otherwise a capture in CUDA's usual mode fails, and makes these calls fail, wherever they are
/// made. None of them concerns a stream that is captured.
class CaptureGuard {
 public:
  CaptureGuard();
  ~CaptureGuard();
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

 private:
  cudaStreamCaptureMode before_ = cudaStreamCaptureModeRelaxed;
};

/// The driver's function of this name, of its 12.0 interface; null where there is none.
void* driver_function(const char* name);

/// Makes a device the calling thread's current one, and finally restores the previous one if anything in this
/// process uses that. A thread that has not used CUDA has device 0 as its current one, which may be another
/// rank's: it keeps the new one. Every call of CUDA is made while one of these exists.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  /// The status of making it current.
  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_ = cudaSuccess;
  int before_ = 0;
  bool is_changed_ = false;
  std::optional<CaptureGuard>
      captures_;  ///< changed while the device is current: the call may need a context
};

}  // namespace troupe::gpu
