#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::core {

/// CRC-32 of ZIP and Ethernet (polynomial 0x04c11db7, reflected), part by part.
class Crc32 {
 public:
  void update(std::span<const std::byte> bytes) noexcept;
  std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_ = ~std::uint32_t{0};
};

std::uint32_t crc32(std::span<const std::byte> bytes) noexcept;

}  // namespace troupe::core
