#include "tests/device_bytes/device_bytes.hpp"

#include <cstdint>

namespace troupe::tests {

// Volatile, or the compiler would call memcpy and memset, which sanitizers watch.
void copy_bytes(void* destination, const void* source, std::size_t bytes) {
  auto* to = static_cast<volatile std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  std::size_t i = 0;
  const auto either =
      reinterpret_cast<std::uintptr_t>(destination) | reinterpret_cast<std::uintptr_t>(source);
  if (either % sizeof(std::uint64_t) == 0) {
    for (; i + sizeof(std::uint64_t) <= bytes; i += sizeof(std::uint64_t)) {
      *reinterpret_cast<volatile std::uint64_t*>(to + i) = *reinterpret_cast<const std::uint64_t*>(from + i);
    }
  }
  for (; i < bytes; ++i) to[i] = from[i];
}

void set_bytes(void* memory, int value, std::size_t bytes) {
  auto* to = static_cast<volatile std::byte*>(memory);
  const std::uint64_t word = 0x0101'0101'0101'0101U * static_cast<std::uint8_t>(value);
  std::size_t i = 0;
  if (reinterpret_cast<std::uintptr_t>(memory) % sizeof word == 0) {
    for (; i + sizeof word <= bytes; i += sizeof word)
      *reinterpret_cast<volatile std::uint64_t*>(to + i) = word;
  }
  for (; i < bytes; ++i) to[i] = static_cast<std::byte>(value);
}

}  // namespace troupe::tests
