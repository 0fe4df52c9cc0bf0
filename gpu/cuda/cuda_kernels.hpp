#pragma once

#include "gpu/device_kernels.hpp"

namespace troupe::gpu {

class CudaStream;

/// The kernels on one stream of CUDA.
class CudaKernels final : public DeviceKernels {
 public:
  explicit CudaKernels(CudaStream& stream) : stream_(stream) {}

  void copy(ConstBufferView source, BufferView destination) override;
  void zero(BufferView destination) override;

 private:
  CudaStream& stream_;
};

}  // namespace troupe::gpu
