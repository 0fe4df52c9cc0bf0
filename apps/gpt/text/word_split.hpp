#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/gpt/text/expression.hpp"
#include "apps/gpt/text/normalizer.hpp"
#include "apps/gpt/text/unicode.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// What is searched for when text is split.
class Pattern {
 public:
  /// Errors as Expression::compile().
  static core::Result<Pattern> compile(std::string_view expression);
  /// Finds exactly this text. Errc::unavailable if it is empty.
  static core::Result<Pattern> literal(std::string_view text);

  /// Like Expression::matches(). Errc::unavailable, with the expression, if it takes too long.
  core::Result<std::vector<TextRange>> matches(std::u16string_view text) const;

 private:
  std::string source_;
  std::variant<std::u16string, Expression> what_;
};

/// Where text is cut, and what becomes of matches.
struct SplitAtPattern {
  /// What becomes of a match: it is a word; it is dropped; it and the matches beside it are a word; it
  /// belongs to the word before or after it, except that only one of several in a row does.
  enum class Matches : std::uint8_t { isolated, removed, contiguous, with_previous, with_next };

  Pattern pattern;
  Matches matches = Matches::isolated;
  bool is_inverted = false;  ///< what lies between counts as the match
};

/// Puts a blank before text that begins with none.
struct BlankBefore {};

/// SentencePiece's blanks.
struct VisibleBlanks {
  enum class Prepends : std::uint8_t { never, first, always };

  std::u16string blank;                  ///< one character, instead of every blank
  Prepends prepends = Prepends::always;  ///< it is put before text that begins without it
  bool splits = true;                    ///< before each
};

using WordStep = std::variant<SplitAtPattern, BlankBefore, VisibleBlanks>;

/// Splits text into words by all steps, each of which sees what the one before has made, and calls word().
core::Result<void> split_words(const std::vector<WordStep>& steps, std::u16string_view text, Place place,
                               const std::function<core::Result<void>(std::u16string_view)>& word);

}  // namespace troupe::apps::gpt
