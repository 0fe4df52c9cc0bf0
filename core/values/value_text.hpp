#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// A value as one line of JSON, for messages and files. Plain JSON where it is exact: null, bool, integer,
/// string, list, and a map whose keys are all strings that do not begin with '$' (sorted by name). Everything
/// else is an object with one tag: {"$tuple": [...]}, {"$map": [[key, value], ...]}, {"$bytes": "<base64>"},
/// and {"$double": "<16 hex digits of the bits>"} for every double. Errc::invalid_argument for a string that
/// is not UTF-8 and for more than kMaxValueDepth levels.
Result<std::string> value_text(const Value& value);
/// Errc::corrupt names the place and the error: an unknown tag, a plain number with a fraction or beyond 64
/// bits, a duplicate key, too many levels.
Result<Value> parse_value(std::string_view text, std::size_t most_levels = kMaxValueDepth);

}  // namespace troupe::core
