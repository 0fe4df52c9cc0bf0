#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::core {

/// xxHash3, 64 bits. Names content (plans, streams, traces); it is no protection against an attacker.
std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;
std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0) noexcept;

}  // namespace troupe::core
