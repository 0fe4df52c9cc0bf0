#pragma once

#include <string_view>

namespace troupe::apps {

/// Why a command fails, on stderr: "troupe plan: ...", or an object of JSON where TROUPE_LOG_JSON asks for
/// it. TROUPE_LOG may turn it off.
void say_error(std::string_view command, std::string_view sentence);

/// What is worth knowing besides the result, as above.
void say_note(std::string_view sentence);

}  // namespace troupe::apps
