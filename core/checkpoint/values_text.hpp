#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/manifest.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// A value as one line of JSON, for messages and files. Errc::invalid_argument as to_json().
Result<std::string> value_text(const Value& value);
/// Errc::corrupt.
Result<Value> parse_value(std::string_view text);

/// The objects of one rank as one line of JSON, for messages. Errc::invalid_argument for a cell outside its
/// grid, and for keys and values that can not be stored.
Result<std::string> objects_text(const std::vector<ManifestObject>& objects);
/// Errc::corrupt.
Result<std::vector<ManifestObject>> parse_objects(std::string_view text);

}  // namespace troupe::core
