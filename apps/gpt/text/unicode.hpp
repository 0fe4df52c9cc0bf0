#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

struct UNormalizer2;

namespace troupe::apps::gpt {

// ICU's characters and normal forms. Text is UTF-16, as in ICU.

/// Errc::invalid_argument if the text is not UTF-8.
core::Result<std::u16string> utf16_of(std::string_view utf8);
core::Result<std::u32string> utf32_of(std::string_view utf8);
/// For text that came from utf16_of().
std::string utf8_of(std::u16string_view text);

/// A part of a text, in UTF-16 units, half-open.
struct TextRange {
  std::size_t start = 0;
  std::size_t end = 0;

  friend bool operator==(const TextRange&, const TextRange&) = default;
};

/// How many bytes of blanks (White_Space) the text begins or ends with.
std::size_t blanks_at_start(std::string_view text);
std::size_t blanks_at_end(std::string_view text);
/// Whether its first or last character is one of words: a letter, mark, digit, connector or joiner.
bool begins_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

/// One of Unicode's normal forms: "NFC", "NFD", "NFKC", "NFKD".
class NormalForm {
 public:
  /// Errc::unavailable for another name.
  static core::Result<NormalForm> named(std::string_view name);

  core::Result<std::u16string> apply(std::u16string_view text) const;

 private:
  NormalForm(const UNormalizer2* normalizer, const UNormalizer2* decomposition)
      : normalizer_(normalizer), decomposition_(decomposition) {}

  const UNormalizer2* normalizer_;  // lives as long as the program
  const UNormalizer2* decomposition_;
};

}  // namespace troupe::apps::gpt
