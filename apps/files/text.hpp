#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/values/value.hpp"

namespace troupe::apps {

/// Names come from files: what would steer a terminal is escaped.
std::string printable(std::string_view text);

/// At most `columns` characters, the end cut off with "...".
std::string shortened(std::string text, std::size_t columns);

/// 32768 as "32.8 kB".
std::string bytes_text(std::uint64_t bytes);

/// A value for people, on one line: [1, 2.5, "a"], (1, 2), {"a": 1}, <16 bytes>.
std::string value_line(const core::Value& value, std::size_t most_columns = SIZE_MAX);

/// The leaves of nested maps.
struct Leaves {
  /// The first of them: "trainer.seed" and its value as value_line() writes it, both cut when they are long.
  std::vector<std::pair<std::string, std::string>> first;
  std::size_t count = 0;  ///< of all
};
Leaves value_leaves(const core::Value& value, std::size_t most);

}  // namespace troupe::apps
