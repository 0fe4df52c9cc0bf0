#pragma once

#include <optional>
#include <string>

namespace troupe::posix {

/// All of a small file, such as one in /proc, which may vanish meanwhile. None if it cannot be read; errno
/// says why.
std::optional<std::string> read_small_file(const std::string& path);

}  // namespace troupe::posix
