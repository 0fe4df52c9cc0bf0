#include "actors/world/storage/direct_read.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace troupe::actors {
namespace {

constexpr std::size_t kDirectBlock = 4096;
constexpr std::size_t kDirectWindow = std::size_t{1} << 20;

struct FreeWindow {
  void operator()(std::byte* memory) const { std::free(memory); }
};

std::byte* window() {
  thread_local const std::unique_ptr<std::byte, FreeWindow> memory(
      static_cast<std::byte*>(std::aligned_alloc(kDirectBlock, kDirectWindow)));
  return memory.get();
}

}  // namespace

ssize_t read_direct(int file, std::uint64_t offset, std::span<std::byte> bytes) {
  std::byte* const memory = window();
  if (memory == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto at = offset + done;
    const auto skip = static_cast<std::size_t>(at % kDirectBlock);
    const auto wanted = std::min(kDirectWindow, skip + (bytes.size() - done));
    const auto blocks = (wanted + kDirectBlock - 1) / kDirectBlock * kDirectBlock;
    const ssize_t came = ::pread(file, memory, blocks, static_cast<off_t>(at - skip));
    if (came < 0 && errno == EINTR) continue;
    if (came < 0) return -1;
    const auto end = std::min(static_cast<std::size_t>(came), wanted);
    if (end <= skip) break;  // the file ends
    std::memcpy(bytes.data() + done, memory + skip, end - skip);
    done += end - skip;
  }
  return static_cast<ssize_t>(done);
}

}  // namespace troupe::actors
