#pragma once

#include <cstdint>

namespace troupe::posix {

/// A number from the operating system's source of randomness. Only names that must differ may depend on it.
std::uint64_t entropy();

}  // namespace troupe::posix
