#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/gpt/text/unicode.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Where a piece of text is: at the beginning of a text, at the beginning of one that goes on from another,
/// or further inside.
enum class Place : std::uint8_t { first, continued, inner };

/// Puts a text before every piece that is not empty and does not go on from another.
struct PrependedText {
  std::u16string text;
};

/// Replaces every occurrence of a text, which is not empty.
struct ReplacedText {
  std::u16string from, to;
};

using NormalizerStep = std::variant<NormalForm, PrependedText, ReplacedText>;

/// Takes the steps, one after another.
core::Result<std::u16string> normalise(const std::vector<NormalizerStep>& steps, std::u16string text,
                                       Place place);

/// The places of all occurrences of a text that is not empty, which do not overlap.
std::vector<TextRange> occurrences_of(std::u16string_view what, std::u16string_view text);

/// The text with something else in these places.
std::u16string replaced(std::u16string_view text, const std::vector<TextRange>& places,
                        std::u16string_view by);

}  // namespace troupe::apps::gpt
