#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/result.hpp"

namespace troupe::core {

/// A JSON object of few levels without duplicate names. Errc::corrupt calls the text `what`.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view what);

}  // namespace troupe::core
