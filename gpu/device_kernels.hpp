#pragma once

#include "gpu/buffer.hpp"

namespace troupe::gpu {

/// The kernels of one stream of a device with memory of its own: gpu/kernels.hpp says what each does, what
/// must hold, and what must stay alive.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  virtual void copy(ConstBufferView source, BufferView destination) = 0;
  virtual void zero(BufferView destination) = 0;
};

}  // namespace troupe::gpu
