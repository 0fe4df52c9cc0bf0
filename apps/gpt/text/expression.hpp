#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/gpt/text/character_set.hpp"
#include "apps/gpt/text/unicode.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// One step of a compiled expression. A step that cannot be taken goes back to the last choice.
struct ExpressionStep {
  enum class Kind : std::uint8_t {
    one,         ///< a character of `set`
    many,        ///< `least` to `most` characters of `set`; as many as possible first
    choose,      ///< goes on at `first`, or else at `second`
    jump,        ///< goes on at `first`
    ahead,       ///< the steps up to `first`, which end in `done`, match here; nothing is consumed
    not_ahead,   ///< they do not
    behind,      ///< the character before this place is in `set`
    not_behind,  ///< there is none, or it is not
    whole,       ///< as `ahead`, but what they match is consumed, and never less of it
    done
  };
  Kind kind = Kind::done;
  std::size_t set = 0;
  std::size_t first = 0, second = 0;
  std::size_t least = 1, most = 1;
  bool keeps_all = false;  ///< for `many`: never fewer than possible
};

struct CompiledExpression {
  std::vector<CharacterSet> sets;
  std::vector<ExpressionStep> steps;
};

/// Compiles what regular expressions of tokenizers use, with the meaning that Oniguruma gives it: sets,
/// properties, groups, alternatives, all repetitions of one character, greedy, lazy or possessive, greedy and
/// lazy ones of groups, (?i) for ASCII letters, and looks ahead and, at one character, behind.
/// Errc::unavailable names the rest.
core::Result<CompiledExpression> compile_expression(std::string_view expression);

/// All matches in a text, one after another, from the first; an empty one only where none ends. The steps
/// taken are limited to a multiple of the length, so this takes linear time: Errc::unavailable beyond that.
core::Result<std::vector<TextRange>> matches_of(const CompiledExpression& expression,
                                                std::u16string_view text);

}  // namespace troupe::apps::gpt
