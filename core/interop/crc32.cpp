#include "core/interop/crc32.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace troupe::core {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are read as one little-endian word");

constexpr std::uint32_t kPolynomial = 0xedb8'8320;
/// kTables[k][b] is the effect of byte b on the remainder when k more bytes follow it.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 16> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ ((remainder & 1U) != 0 ? kPolynomial : 0);
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}();

}  // namespace

void Crc32::update(std::span<const std::byte> bytes) noexcept {
  std::uint32_t state = state_;
  while (bytes.size() >= 16) {
    std::array<std::uint64_t, 2> words{};
    std::memcpy(words.data(), bytes.data(), sizeof words);
    words[0] ^= state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      state ^= kTables[15 - i][(words[0] >> (8 * i)) & 0xff] ^ kTables[7 - i][(words[1] >> (8 * i)) & 0xff];
    }
    bytes = bytes.subspan(16);
  }
  for (const std::byte byte : bytes) {
    state = (state >> 8) ^ kTables[0][(state ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  state_ = state;
}

std::uint32_t crc32(std::span<const std::byte> bytes) noexcept {
  Crc32 crc;
  crc.update(bytes);
  return crc.value();
}

}  // namespace troupe::core
