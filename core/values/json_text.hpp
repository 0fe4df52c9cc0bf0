#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe::core {

/// Append JSON to a text that would be slow to build as a tree first.

/// Quoted and escaped; bytes that are not UTF-8 become U+FFFD.
void append_string(std::string& json, std::string_view text);
void append_number(std::string& json, std::uint64_t number);
/// "[4,16]". Sizes are not negative.
void append_sizes(std::string& json, std::span<const std::int64_t> sizes);

}  // namespace troupe::core
