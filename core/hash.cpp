#include "core/hash.hpp"

#include <xxhash.h>

namespace troupe::core {

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t hash64(std::string_view text, std::uint64_t seed) noexcept {
  return hash64(std::as_bytes(std::span(text)), seed);
}

}  // namespace troupe::core
