#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

struct URegularExpression;
struct UNormalizer2;

namespace troupe::apps::gpt {

// ICU's regular expressions and normal forms. Text is UTF-16, as in ICU.

/// Errc::invalid_argument if the text is not UTF-8.
core::Result<std::u16string> utf16_of(std::string_view utf8);
/// For text that came from utf16_of().
std::string utf8_of(std::u16string_view text);

/// A part of a text, in UTF-16 units, half-open.
struct TextRange {
  std::size_t start = 0;
  std::size_t end = 0;

  friend bool operator==(const TextRange&, const TextRange&) = default;
};

/// A regular expression with the same meaning in ICU and in Oniguruma, which Hugging Face's tokenizers use.
/// One thread at a time.
class Pattern {
 public:
  /// Errc::unavailable for what the two interpret differently, or ICU does not support; the message contains
  /// the expression.
  static core::Result<Pattern> compile(std::string_view expression);
  /// Finds exactly this text.
  static core::Result<Pattern> literal(std::string_view text);

  /// All non-empty matches, from the first. Errc::unavailable if one takes too much memory.
  core::Result<std::vector<TextRange>> matches(std::u16string_view text) const;

 private:
  struct Close {
    void operator()(URegularExpression* expression) const;
  };
  using Handle = std::unique_ptr<URegularExpression, Close>;

  explicit Pattern(Handle expression) : expression_(std::move(expression)) {}
  static core::Result<Pattern> open(std::string_view expression, unsigned flags);

  Handle expression_;
};

/// One of Unicode's normal forms: "NFC", "NFD", "NFKC", "NFKD".
class NormalForm {
 public:
  /// Errc::unavailable for another name.
  static core::Result<NormalForm> named(std::string_view name);

  core::Result<std::u16string> apply(std::u16string_view text) const;

 private:
  explicit NormalForm(const UNormalizer2* normalizer) : normalizer_(normalizer) {}

  const UNormalizer2* normalizer_;  // lives as long as the program
};

}  // namespace troupe::apps::gpt
