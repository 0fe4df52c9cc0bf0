#pragma once

namespace troupe::core {

/// The version of Troupe, as CMakeLists.txt states it.
inline constexpr const char* kVersion = "0.1.0";

}  // namespace troupe::core
