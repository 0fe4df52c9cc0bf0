#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// One GPU as its driver describes it.
struct CudaDeviceInfo {
  int index = 0;  ///< index among the GPUs visible to this process
  std::string name;
  std::string pci_address;
  int major = 0;  ///< of the compute capability
  int minor = 0;
  int multiprocessors = 0;
  bool has_fast_doubles = false;  ///< at least a fourth as many operations in f64 as in f32
  std::size_t memory_bytes = 0;
};

/// True when this build has the CUDA data plane.
bool is_built_with_cuda() noexcept;

/// The GPUs of this process. Errc::unavailable says what is missing: the data plane in this build, the
/// driver, or a GPU.
core::Result<std::vector<CudaDeviceInfo>> list_cuda_devices();

/// Called once, from a thread of the device, when a device is lost: nothing more runs on it, and there are no
/// more notifications.
using DeviceFailed = std::function<void(const core::Error&)>;

/// Errc::invalid_argument unless open_device() knows names of this form; whether the device is there is not
/// asked.
core::Result<void> check_device_name(std::string_view name);

/// Opens "host", "cuda" (the first GPU) or "cuda:<index>". Errc::invalid_argument for any other name.
core::Result<std::unique_ptr<Device>> open_device(std::string_view name, DeviceFailed on_failure = {});

/// When nothing is to run on the device any more: whether that is so, and other work may begin there. An
/// Error says why not: it has failed, or work on it did not end in time.
core::Result<void> settle(Device& device, std::chrono::nanoseconds deadline);

/// The GPU that a device's name means: 0 for "cuda", or that of "cuda:<index>"; empty for any other name.
std::optional<int> cuda_index_of(std::string_view name);

}  // namespace troupe::gpu
