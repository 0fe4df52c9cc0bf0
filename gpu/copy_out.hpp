#pragma once

#include "gpu/buffer.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

/// Like copy() (gpu/kernels.hpp), of many bytes that nothing reads soon, such as what is staged for a file.
/// On the host they go past the caches, which keep what the trainer uses, and memory is not read only to be
/// overwritten. The ranges do not overlap.
void copy_out(ConstBufferView source, BufferView destination);
void copy_out(ConstBufferView source, BufferView destination, StreamView stream);

}  // namespace troupe::gpu
