#pragma once

#include <string_view>

namespace troupe::core {

/// Whether the text is UTF-8: no stray or missing continuation, no overlong form, no surrogate, nothing above
/// U+10FFFF. JSON can say no other text.
bool is_utf8(std::string_view text) noexcept;

}  // namespace troupe::core
