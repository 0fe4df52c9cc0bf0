#pragma once

#include <string>

#include "core/result.hpp"

namespace troupe::gpu {

/// 32 hexadecimal digits from the operating system's entropy source, for values that strangers must not
/// guess. Errc::unavailable if there is no such source.
core::Result<std::string> make_secret();

}  // namespace troupe::gpu
