#include "gpu/cuda/cuda_kernels.hpp"

#include <cuda_runtime_api.h>

#include "core/check.hpp"
#include "gpu/cuda/cuda_stream.hpp"

namespace troupe::gpu {

void CudaKernels::copy(ConstBufferView source, BufferView destination) {
  CHECK(source.bytes == destination.bytes, "a copy has as many bytes as its source");
  if (source.bytes == 0) return;
  stream_.run("copy", [=](cudaStream_t stream) {
    return cudaMemcpyAsync(destination.data, source.data, source.bytes, cudaMemcpyDefault, stream);
  });
}

void CudaKernels::zero(BufferView destination) {
  if (destination.bytes == 0) return;
  stream_.run("zero", [=](cudaStream_t stream) {
    return cudaMemsetAsync(destination.data, 0, destination.bytes, stream);
  });
}

}  // namespace troupe::gpu
