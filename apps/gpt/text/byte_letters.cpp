#include "apps/gpt/text/byte_letters.hpp"

#include <array>

namespace troupe::apps::gpt {

namespace {

constexpr int kLetters = 0x144;

constexpr bool is_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

struct Tables {
  std::array<int, 256> letter{};
  std::array<int, kLetters> byte{};  // -1: no letter
};

constexpr Tables make_tables() {
  Tables tables;
  tables.byte.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int letter = is_itself(byte) ? byte : next++;
    tables.letter[static_cast<std::size_t>(byte)] = letter;
    tables.byte[static_cast<std::size_t>(letter)] = byte;
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::string letter_of(unsigned char byte) {
  const int letter = kTables.letter[byte];
  if (letter < 0x80) return std::string(1, static_cast<char>(letter));
  return {static_cast<char>(0xc0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3f))};
}

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  std::string bytes;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    int letter = static_cast<unsigned char>(letters[i]);
    if (letter >= 0x80) {
      // All letters have at most two bytes.
      if (letter < 0xc2 || letter > 0xdf || i + 1 == letters.size()) return {};
      letter = (letter & 0x1f) << 6 | (static_cast<unsigned char>(letters[++i]) & 0x3f);
    }
    if (letter >= kLetters || kTables.byte[static_cast<std::size_t>(letter)] < 0) return {};
    bytes.push_back(static_cast<char>(kTables.byte[static_cast<std::size_t>(letter)]));
  }
  return bytes;
}

}  // namespace troupe::apps::gpt
