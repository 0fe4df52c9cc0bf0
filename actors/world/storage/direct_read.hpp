#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::actors {

/// Size from which on a read is worth bypassing the page cache.
inline constexpr std::size_t kShortestDirectRead = std::size_t{256} << 10;

/// Like pread() on a file opened with O_DIRECT, at any offset into any memory, until `bytes` is full or the
/// file ends: whole blocks are read into aligned memory of the thread and copied. -1 with errno; EINVAL if
/// the file system turns out not to have direct reads.
ssize_t read_direct(int file, std::uint64_t offset, std::span<std::byte> bytes);

}  // namespace troupe::actors
