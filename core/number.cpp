#include "core/number.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::core {

std::string quoted_excerpt(std::string_view text) {
  constexpr std::size_t kShown = 40;
  std::string shown(text.substr(0, kShown));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() <= kShown) return fmt::format("\"{}\"", shown);
  return fmt::format("\"{}...\" of {} bytes", shown, text.size());
}

}  // namespace troupe::core
