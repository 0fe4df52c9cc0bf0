#pragma once

#include <cstdint>
#include <string>

#include "actors/world/environment.hpp"

namespace troupe::tests {

/// For tests that can be asked for more than the suite has time for.
inline std::uint64_t number_in_environment(const char* name, std::uint64_t otherwise) {
  const auto text = actors::process_variables()(name);
  return text ? std::stoull(*text) : otherwise;
}

/// How many times longer anything may take than in a release build, for builds that are slow on purpose.
inline int patience_factor() {
  return static_cast<int>(number_in_environment("TROUPE_TEST_PATIENCE", 1));
}

}  // namespace troupe::tests
