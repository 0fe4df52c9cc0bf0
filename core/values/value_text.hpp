#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// A value as one line of JSON, for messages and files; form and Errc::invalid_argument as in to_json().
Result<std::string> value_text(const Value& value);
/// Errc::corrupt names the place and the error, as value_from_json() does.
Result<Value> parse_value(std::string_view text, std::size_t most_levels = kMaxValueDepth);

}  // namespace troupe::core
