#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace troupe::cuda_emulation {

/// Runs `thread` for all threads of all blocks of a grid, in the calling thread of the host.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);

}  // namespace troupe::cuda_emulation
