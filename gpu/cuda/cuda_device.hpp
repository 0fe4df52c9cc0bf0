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
  int device = 0;  ///< among those this process sees
  /// The most that allocate_staging() may have handed out at one time.
  std::size_t staging_bytes = std::size_t{8} << 30;
  /// How often completions are looked for while some are awaited.
  std::chrono::microseconds poll_period{30};
  /// How long the end of a stream waits for its work. After it the stream is left to the driver: a device
  /// that hangs must not hang the end of its process.
  std::chrono::seconds drain_deadline{60};
  /// Called once, from a thread of the device, when the device fails. From then on nothing that is enqueued
  /// runs, no notification arrives, and every wait ends in this error.
  std::function<void(const core::Error&)> on_failure;
};

/// The GPUs which this process sees. Errc::unavailable when there is no driver or no GPU.
core::Result<std::vector<CudaDeviceInfo>> cuda_devices();

/// A GPU as a device. Its streams are streams of CUDA, so they take kernels and copies (gpu/kernels.hpp), but
/// no host work: enqueue() and enqueue_async() of its streams are programming errors.
core::Result<std::unique_ptr<Device>> open_cuda_device(CudaOptions options);

}  // namespace troupe::gpu
