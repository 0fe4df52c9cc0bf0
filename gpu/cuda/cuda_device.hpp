#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/result.hpp"
#include "gpu/device.hpp"
#include "gpu/devices.hpp"

namespace troupe::gpu {

struct CudaOptions {
  int device = 0;  ///< index among the GPUs visible to this process
  /// The most that allocate_staging() may have handed out at any time.
  std::size_t staging_bytes = std::size_t{8} << 30;
  /// How often completions are polled while any are awaited.
  std::chrono::microseconds poll_period{30};
  /// How long the end of a stream waits for its work. After that the stream is left to the driver: a device
  /// that hangs must not prevent its process from ending.
  std::chrono::seconds drain_deadline{60};
  /// Called once, from a thread of the device, when the device fails. From then on no enqueued work runs, no
  /// notification arrives, and every wait ends in this error.
  std::function<void(const core::Error&)> on_failure;
};

/// The GPUs visible to this process. Errc::unavailable if there is no driver or no GPU.
core::Result<std::vector<CudaDeviceInfo>> cuda_devices();

/// Like settle() (gpu/devices.hpp), without waiting. Nothing for devices of other kinds.
core::Result<void> check_usable(const Device& device);

/// Whether this process loads kernels when they are first launched (CUDA_MODULE_LOADING).
bool cuda_loads_lazily();

/// A GPU as a device. Its streams are CUDA streams, so they accept kernels and copies (gpu/kernels.hpp), but
/// no host work: enqueue() and enqueue_async() on its streams are programming errors.
core::Result<std::unique_ptr<Device>> open_cuda_device(CudaOptions options);

}  // namespace troupe::gpu
