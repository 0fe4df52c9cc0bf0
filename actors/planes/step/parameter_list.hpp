#pragma once

#include <vector>

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Errc::invalid_argument names the first parameter that no job can have, and what it could be.
core::Result<void> check_parameters(const std::vector<core::ParameterSpec>& specs);

}  // namespace troupe::actors
