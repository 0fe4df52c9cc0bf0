#include "core/utf8.hpp"

#include <cstddef>
#include <cstdint>

namespace troupe::core {
namespace {

/// The length of the multi-byte character at the beginning of `text`, 0 if there is none.
std::size_t long_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool beyond = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const bool ascii = static_cast<std::uint8_t>(text[i]) < 0x80;
    const std::size_t length = ascii ? 1 : long_character(text.substr(i));
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string printable_of(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const auto first = static_cast<std::uint8_t>(text[0]);
    const std::size_t length = first < 0x80 ? 1 : long_character(text);
    const bool is_control = first < 0x20 ? first != '\n' && first != '\t' : first == 0x7f;
    const bool is_long_control = length == 2 && first == 0xc2 && static_cast<std::uint8_t>(text[1]) < 0xa0;
    const bool is_shown = length > 0 && !is_control && !is_long_control;
    printable += is_shown ? text.substr(0, length) : "\ufffd";
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return printable;
}

std::string beginning_of(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  std::size_t end = most_bytes;
  // Not inside a character.
  while (end > 0 && (static_cast<std::uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace troupe::core
