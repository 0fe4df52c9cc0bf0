#pragma once

#include <string>

#include "core/result.hpp"

namespace troupe::gpu {

/// 32 hexadecimal digits out of the operating system's source of randomness, for what strangers must not
/// guess. Errc::unavailable when there is no such source.
core::Result<std::string> make_secret();

}  // namespace troupe::gpu
