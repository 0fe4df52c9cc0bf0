#pragma once

#include <memory>

#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// The processor as a device: buffers are memory of the process, each stream is one named worker thread.
core::Result<std::unique_ptr<Device>> open_host_device();

}  // namespace troupe::gpu
