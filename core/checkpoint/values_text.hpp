#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/manifest.hpp"
#include "core/result.hpp"
#include "core/values/value_text.hpp"

namespace troupe::core {

/// The objects of one rank as one line of JSON, for messages. Errc::invalid_argument for a cell outside of
/// its grid, and for keys and values that cannot be stored.
Result<std::string> objects_text(const std::vector<ManifestObject>& objects);
/// Errc::corrupt.
Result<std::vector<ManifestObject>> parse_objects(std::string_view text);

}  // namespace troupe::core
