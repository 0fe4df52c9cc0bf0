#pragma once

#include <cstdint>
#include <string>

namespace troupe::posix {

/// A number from the operating system's entropy source. Only names that must be unique may depend on it.
std::uint64_t entropy();

/// 16 hexadecimal digits that are almost surely unique, here and on other machines.
std::string unique_name();

}  // namespace troupe::posix
