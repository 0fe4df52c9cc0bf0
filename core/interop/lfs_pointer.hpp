#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "core/result.hpp"

namespace troupe::core {

/// The first bytes of a file that show whether it is a pointer of Git LFS.
inline constexpr std::size_t kPointerBytes = 200;

/// Errc::corrupt if a file that begins with these bytes is what a clone without git-lfs leaves in place of
/// `name`: a few lines with the real file's hash and size.
Result<void> check_is_no_pointer(std::span<const std::byte> beginning, std::string_view name);

}  // namespace troupe::core
