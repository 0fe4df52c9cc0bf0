#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/gpt/text/character_set.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

inline constexpr std::size_t kNoLimit = static_cast<std::size_t>(-1);

/// A regular expression, taken apart.
struct ExpressionTree {
  enum class Kind : std::uint8_t {
    set,           ///< one character of `set`
    sequence,      ///< of the parts; matches nothing if there is none
    alternatives,  ///< the first part that matches
    repetition,    ///< of the only part
    ahead,
    not_ahead,
    behind,      ///< the only part is a set
    not_behind,  ///< as above
    whole        ///< what the only part matches first, and nothing else
  };
  enum class Greed : std::uint8_t { most, least, all };

  Kind kind = Kind::sequence;
  std::size_t set = 0;  ///< an index
  std::vector<ExpressionTree> parts = {};
  std::size_t least = 1, most = 1;
  Greed greed = Greed::most;

  /// Whether it may match without a character.
  bool may_be_empty() const;
};

/// Errc::unavailable names what is not taken; see compile_expression(). Adds the sets that the tree has.
core::Result<ExpressionTree> parse_expression(std::string_view expression, std::vector<CharacterSet>& sets);

}  // namespace troupe::apps::gpt
