#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace troupe::apps {

/// Out of the page cache, so that a read comes from the disk.
inline void forget(const std::filesystem::path& file) {
  const int handle = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (handle < 0) return;
  (void)posix_fadvise(handle, 0, 0, POSIX_FADV_DONTNEED);
  close(handle);
}

inline void forget_all(const std::filesystem::path& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, error)) {
    if (entry.is_regular_file()) forget(entry.path());
  }
}

}  // namespace troupe::apps
