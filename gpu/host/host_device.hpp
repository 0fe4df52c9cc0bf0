#pragma once

#include <memory>

#include "core/result.hpp"
#include "gpu/device.hpp"
#include "gpu/devices.hpp"

namespace troupe::gpu {

/// The processor as a device: buffers are memory of the process, each stream is one named worker thread.
/// `on_failure` is told of the first task that throws; those after it run all the same, so that nobody waits
/// for one for ever.
core::Result<std::unique_ptr<Device>> open_host_device(DeviceFailed on_failure = {});

}  // namespace troupe::gpu
