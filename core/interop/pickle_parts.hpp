#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::core {

/// In the place of a part that an object does not have.
inline constexpr std::uint32_t kNoPickleNode = ~std::uint32_t{0};

/// Where the parts of an object lie from its first one on.
inline constexpr std::size_t kCallablePart = 0;
inline constexpr std::size_t kArgumentsPart = 1;
inline constexpr std::size_t kItemsPart = 2;
inline constexpr std::size_t kStatePart = 3;
inline constexpr std::size_t kObjectParts = 4;

}  // namespace troupe::core
