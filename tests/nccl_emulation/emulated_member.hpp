#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "gpu/collective/nccl/nccl_backend.hpp"
#include "gpu/device.hpp"
#include "gpu/devices.hpp"
#include "tests/nccl_emulation/fake_nccl.hpp"

namespace troupe::gpu {

/// A device on which the emulated NCCL runs. Two sources define it: on_host.cpp with the host's device, and
/// cuda/on_cuda.cpp with the CUDA device over its emulated runtime; a test program links one of them.
struct EmulatedNcclDevice {
  std::unique_ptr<Device> device;
  NcclDevicePort port;
  RunOnStream run_on_stream;
  FakeNcclMemory memory = FakeNcclMemory::of_host();
};
/// `index` is that of a GPU; the host is one device.
EmulatedNcclDevice open_emulated_nccl_device(DeviceFailed on_failure = {}, int index = 0);

/// What StreamQueue::enqueue() does, on any of these devices.
void run_on_emulated_stream(StreamView stream, std::function<void()> body);

}  // namespace troupe::gpu
