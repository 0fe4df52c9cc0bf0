#pragma once

#include <span>
#include <vector>

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Errc::invalid_argument names the first parameter that is never valid, and what it could be.
core::Result<void> check_parameters(std::span<const core::ParameterSpec> specs);

}  // namespace troupe::actors
