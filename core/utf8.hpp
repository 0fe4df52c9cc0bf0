#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::core {

/// Whether the text is UTF-8: no stray or missing continuation, no overlong form, no surrogate, nothing above
/// U+10FFFF. JSON can say no other text.
bool is_utf8(std::string_view text) noexcept;

/// The text as a terminal may be given it: U+FFFD takes the place of each byte that is not UTF-8 and of each
/// control character but ends of lines and tabs, so that nobody's text moves the cursor.
std::string printable_of(std::string_view text);

/// The text, or its beginning and "..." when it has more bytes: for messages about what others wrote.
std::string beginning_of(std::string_view text, std::size_t most_bytes = 80);

}  // namespace troupe::core
