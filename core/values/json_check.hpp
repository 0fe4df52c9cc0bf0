#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::core {

/// What a text of JSON is like, before a tree is made of it.
struct JsonCheck {
  bool fits = false;  ///< it is JSON within the limits
  std::string twice;  ///< a member that an object has twice, which parsers pass over; else empty
};

/// At most this many lists and objects within each other, and items in a list. Takes time proportional to the
/// text, and memory to the names in it.
JsonCheck check_json(std::string_view text, std::size_t most_levels, std::size_t most_items = SIZE_MAX);

}  // namespace troupe::core
