#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace troupe::apps {

/// JSON as a program prints it, with a line break at its end: `indent` spaces per level, or all of it on one
/// line for -1. Bytes that are not UTF-8, as names of files may have, become U+FFFD.
std::string json_text(const nlohmann::ordered_json& json, int indent = 2);

}  // namespace troupe::apps
