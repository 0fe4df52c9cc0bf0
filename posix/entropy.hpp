#pragma once

#include <cstdint>
#include <string>

namespace troupe::posix {

/// A number from the operating system's source of randomness. Only names that must differ may depend on it.
std::uint64_t entropy();

/// 16 hexadecimal digits that no other name is likely to have, on this machine or another.
std::string unique_name();

}  // namespace troupe::posix
