#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>

namespace troupe::apps::gpt {

struct LaunchShape {
  dim3 grid;
  dim3 block;
};

/// Enqueues a kernel. Does exactly what the <<<>>> notation does, but a C++ compiler can read it too.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), LaunchShape shape, cudaStream_t stream,
                   Arguments... arguments) {
  std::tuple<Parameters...> values{arguments...};
  return std::apply(
      [&](auto&... value) {
        void* places[] = {&value...};
        return cudaLaunchKernel(kernel, shape.grid, shape.block, places, 0, stream);
      },
      values);
}

inline unsigned blocks_for(std::size_t count, std::size_t of_block) {
  return static_cast<unsigned>((count + of_block - 1) / of_block);
}

}  // namespace troupe::apps::gpt
