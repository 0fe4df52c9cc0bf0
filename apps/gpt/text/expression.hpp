#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "apps/gpt/text/unicode.hpp"
#include "core/result.hpp"

struct re_pattern_buffer;

namespace troupe::apps::gpt {

/// A regular expression of a tokenizer, as Oniguruma reads it, which Hugging Face's tokenizers use as well.
/// In Debian 12 it knows the characters of Unicode 14.0.
class Expression {
 public:
  /// Errc::unavailable with Oniguruma's reason.
  static core::Result<Expression> compile(std::string_view expression);

  /// All matches in a text, one after another, from the first; an empty one only where none ends. How often
  /// a match goes back to a choice is limited to a multiple of the length: Errc::unavailable beyond that.
  core::Result<std::vector<TextRange>> matches(std::u16string_view text) const;

 private:
  std::shared_ptr<re_pattern_buffer> compiled_;
};

}  // namespace troupe::apps::gpt
