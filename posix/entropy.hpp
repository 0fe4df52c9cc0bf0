#pragma once

#include <cstdint>
#include <string>

namespace troupe::posix {

/// A number from the operating system's entropy source. Only names that must be unique may depend on it.
std::uint64_t entropy();

/// 16 hexadecimal digits that are likely unique, on this machine and others.
std::string unique_name();

}  // namespace troupe::posix
