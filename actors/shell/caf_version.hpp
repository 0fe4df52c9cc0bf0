#pragma once

#include <string>

namespace troupe::actors {

/// The version of CAF that this build uses, for example "0.17.6".
std::string caf_version();

}  // namespace troupe::actors
