#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace troupe::cuda_emulation {

/// Runs `thread` for all threads of all blocks of a grid, in the calling thread of the host.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);

/// As memcpy and memset, but no sanitizer looks: the way the device reaches its memory.
void copy_bytes(void* destination, const void* source, std::size_t bytes);
void set_bytes(void* memory, int value, std::size_t bytes);

}  // namespace troupe::cuda_emulation
