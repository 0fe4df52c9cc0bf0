#include "actors/shell/caf_version.hpp"

#include <fmt/format.h>

#include "actors/shell/caf_release.hpp"

namespace troupe::actors {

std::string caf_version() {
  constexpr int kVersion = TROUPE_CAF_VERSION;
  return fmt::format("{}.{}.{}", kVersion / 10000, kVersion / 100 % 100, kVersion % 100);
}

}  // namespace troupe::actors
