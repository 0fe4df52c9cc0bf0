#include "actors/shell/caf_version.hpp"

#include <fmt/format.h>

#include <caf/config.hpp>

namespace troupe::actors {

std::string caf_version() {
  return fmt::format("{}.{}.{}", CAF_VERSION / 10000, CAF_VERSION / 100 % 100, CAF_VERSION % 100);
}

}  // namespace troupe::actors
