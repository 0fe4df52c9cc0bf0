#include "gpu/host/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <stop_token>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

// From this size on memory is mapped: the kernel then zeroes pages on first access.
constexpr std::size_t kMappedBytes = std::size_t{1} << 20;

/// By a thread of its own, which can end after each.
constexpr std::size_t kProvidedAtOnce = std::size_t{16} << 20;

std::byte* allocate_small(std::size_t bytes) {
  const std::size_t rounded = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  void* data = std::aligned_alloc(kBufferAlignment, rounded);
  if (data != nullptr) std::memset(data, 0, rounded);
  return static_cast<std::byte*>(data);
}

std::byte* map_new(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  // Only a hint: without huge pages everything works, just a little slower.
  (void)madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

/// What is left of ReadyHostMemory.
struct Ready {
  std::mutex mutex;
  BufferView memory;
};

Ready& ready() {
  static Ready kept;
  return kept;
}

std::atomic<std::size_t> large_bytes{0};

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

std::byte* map_large(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::ptrdiff_t>::max()) return nullptr;
  std::byte* data = nullptr;
  {
    const std::lock_guard lock(ready().mutex);
    auto& kept = ready().memory;
    if (const auto wanted = whole_pages(bytes); wanted <= kept.bytes) {
      data = kept.data;
      kept = kept.subview(wanted, kept.bytes - wanted);
    }
  }
  if (data == nullptr) data = map_new(bytes);
  if (data != nullptr) large_bytes += bytes;
  return data;
}

void unmap_large(BufferView view) {
  large_bytes -= view.bytes;
  munmap(view.data, view.bytes);
}

}  // namespace

std::size_t large_host_memory() noexcept {
  return large_bytes;
}

void ReadyHostMemory::keep(std::size_t bytes) {
  provider_ = {};
  std::byte* const data = bytes == 0 ? nullptr : map_new(whole_pages(bytes));
  const BufferView all{data, data == nullptr ? 0 : whole_pages(bytes)};
  BufferView before;
  {
    const std::lock_guard lock(ready().mutex);
    before = std::exchange(ready().memory, all);
  }
  if (before.bytes > 0) munmap(before.data, before.bytes);
  provider_ = provide_pages_ahead({all});
}

void ReadyHostMemory::wait() {
  if (provider_.joinable()) provider_.join();
}

core::Result<Buffer> allocate_host_memory(std::size_t bytes) {
  if (bytes == 0) return Buffer();
  const bool mapped = bytes >= kMappedBytes;
  std::byte* data = mapped ? map_large(bytes) : allocate_small(bytes);
  if (data == nullptr) {
    return core::fail(
        core::Errc::out_of_memory,
        "expected {} bytes of host memory, but the operating system refused them; start fewer ranks on "
        "this machine or use smaller buffers",
        bytes);
  }
  if (mapped) return Buffer({data, bytes}, unmap_large);
  return Buffer({data, bytes}, [](BufferView view) { std::free(view.data); });
}

void provide_pages(BufferView memory) {
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<std::uintptr_t>(memory.data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory.data) + memory.bytes) / page * page;
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);
#else
  (void)memory;
#endif
}

std::jthread provide_pages_ahead(std::vector<BufferView> memory) {
  std::size_t bytes = 0;
  for (const auto view : memory) bytes += view.bytes;
  if (bytes < kProvidedAtOnce) return {};
  return std::jthread([memory = std::move(memory)](const std::stop_token& stop) {
    // In parts, so that it ends soon after it is of no use any more.
    for (const auto view : memory) {
      for (std::size_t at = 0; at < view.bytes && !stop.stop_requested(); at += kProvidedAtOnce)
        provide_pages(view.subview(at, std::min(kProvidedAtOnce, view.bytes - at)));
    }
  });
}

}  // namespace troupe::gpu
