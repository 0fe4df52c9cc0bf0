#pragma once

#include <cstdint>
#include <string>

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Checks that experts can be distributed over ranks as the options say, lanes filled in; `groups` of
/// context_parallel ranks each have lanes of their own. Errc::invalid_argument names the numbers that do not
/// fit.
core::Result<void> check_experts(const core::TrainingOptions& options, int groups);

/// Words of the verdict that count where tokens go: of each layer how often each expert was chosen, then how
/// often it had no room.
std::int64_t expert_words(const core::TrainingOptions& options);

/// What ranks compare when they join: a line for each layer.
std::string describe_experts(const core::TrainingOptions& options);

}  // namespace troupe::actors
