#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::core {

/// Stands for a part that an object does not have.
inline constexpr std::uint32_t kNoPickleNode = ~std::uint32_t{0};

/// The positions of an object's parts, from its first one. An object that was only called has the first two.
inline constexpr std::size_t kCallablePart = 0;
inline constexpr std::size_t kArgumentsPart = 1;
inline constexpr std::size_t kItemsPart = 2;
inline constexpr std::size_t kStatePart = 3;
inline constexpr std::size_t kCalledParts = 2;
inline constexpr std::size_t kObjectParts = 4;

/// The payload of a list, a set or a dict: where its parts begin and, in the bits above, for how many more
/// parts there is room behind them.
inline constexpr std::uint64_t kBeginBits = 40;
inline constexpr std::uint64_t kBeginMask = (std::uint64_t{1} << kBeginBits) - 1;
inline constexpr std::uint64_t kMostSpare = (std::uint64_t{1} << (64 - kBeginBits)) - 1;

}  // namespace troupe::core
