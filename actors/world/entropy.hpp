#pragma once

#include <cstdint>

namespace troupe::actors {

/// A number from the operating system's source of randomness. Only what names things apart may hang on it.
std::uint64_t entropy();

}  // namespace troupe::actors
