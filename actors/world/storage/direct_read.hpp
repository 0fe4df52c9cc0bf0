#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::actors {

/// Bytes from which on a read is worth going to the disk itself.
inline constexpr std::size_t kShortestDirectRead = std::size_t{256} << 10;

/// As pread() of a file that was opened with O_DIRECT, of any offset into any memory, until `bytes` is full
/// or the file ends: whole blocks are read into aligned memory of the thread and copied. -1 with errno;
/// EINVAL where the file system has no direct reads after all.
ssize_t read_direct(int file, std::uint64_t offset, std::span<std::byte> bytes);

}  // namespace troupe::actors
