#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::core {

/// Properties of a JSON text, found before a tree is built from it.
struct JsonCheck {
  bool fits = false;  ///< it is JSON within the limits
  std::string twice;  ///< a duplicate member of an object, which parsers accept; otherwise empty
};

/// Limits the nesting of lists and objects, and the number of items in a list. Takes time proportional to the
/// text, and memory proportional to the names in it.
JsonCheck check_json(std::string_view text, std::size_t most_levels, std::size_t most_items = SIZE_MAX);

}  // namespace troupe::core
