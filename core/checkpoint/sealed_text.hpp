#pragma once

#include <string>
#include <string_view>

#include "core/result.hpp"

namespace troupe::core {

/// Ends a JSON object whose members are already written, one per line, by adding its last line: "hash", the
/// hash64 of all bytes before that line.
std::string seal(std::string text);
/// The hash in the last line of what seal() has returned, in 16 hexadecimal digits.
std::string hash_of_sealed(std::string_view text);

/// The bytes before that line. Errc::corrupt says that `what` ("the manifest") is cut short or was altered.
Result<std::string_view> unseal(std::string_view text, std::string_view what);

}  // namespace troupe::core
