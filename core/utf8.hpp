#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::core {

/// Whether the text is UTF-8: no stray or missing continuation, no overlong form, no surrogate, nothing above
/// U+10FFFF. JSON cannot represent any other text.
bool is_utf8(std::string_view text) noexcept;

/// The text in a form safe for a terminal: U+FFFD replaces each byte that is not UTF-8 and each control
/// character except line ends and tabs, so that no text moves the cursor.
std::string printable_of(std::string_view text);

/// The text, or its beginning followed by "..." if it has more bytes: for messages that quote other sources.
std::string beginning_of(std::string_view text, std::size_t most_bytes = 80);

}  // namespace troupe::core
