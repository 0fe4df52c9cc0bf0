#pragma once

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Checks that experts can be distributed over ranks as the options say, lanes filled in.
/// Errc::invalid_argument and Errc::unavailable name the numbers that do not fit.
core::Result<void> check_experts(const core::TrainingOptions& options, int data_parallel);

}  // namespace troupe::actors
