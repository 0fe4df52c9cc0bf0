#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::gpu {

/// Every buffer starts at a multiple of this.
inline constexpr std::size_t kBufferAlignment = 256;

/// `bytes` of zeroed memory of this process, as both the host and the simulated device allocate it. Large
/// buffers request huge pages. Errc::out_of_memory if the operating system refuses. May be called from any
/// thread, and so may the release of the buffer.
core::Result<Buffer> allocate_host_memory(std::size_t bytes);

/// How much of it this process has in pieces of at least 1 MiB.
std::size_t large_host_memory() noexcept;

/// Memory that this process takes from the system before it is wanted, with its pages, so that it may be
/// ready at once. The next large pieces that are allocated, up to as much together, come from it, also when
/// this object is gone. One at a time.
class ReadyHostMemory {
 public:
  /// So many bytes, instead of those kept before; a thread provides their pages.
  void keep(std::size_t bytes);
  /// The pages that are to be kept have been provided.
  void wait();

 private:
  std::jthread provider_;
};

/// Has the operating system provide the pages of such memory now and not on first access. Values stay as they
/// are, also those that other threads write meanwhile. Where the system cannot do that, nothing happens.
void provide_pages(BufferView memory);
/// The same in a thread of its own, one view after another, which ends early if it is asked to. Less than 16
/// MiB are not worth a thread.
std::jthread provide_pages_ahead(std::vector<BufferView> memory);

}  // namespace troupe::gpu
