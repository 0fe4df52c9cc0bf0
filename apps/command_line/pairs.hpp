#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps {

/// The words that were given to `option`, each NAME=VALUE; the last of a name counts. Errc::invalid_argument
/// shows a word that is not one.
core::Result<std::map<std::string, std::string>> pairs_of(std::string_view option,
                                                          const std::vector<std::string>& words);

}  // namespace troupe::apps
