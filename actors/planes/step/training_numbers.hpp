#pragma once

#include "core/ids.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

// The numbers of a job's options that have to fit each other. Errc::invalid_argument names those that do not,
// and what to choose.

/// Ranks with lanes of their own, or groups of those that share them: all, over those that share a model.
core::Result<int> data_parallel_of(const core::TrainingOptions& options, core::WorldSize world);
core::Result<void> check_pieces(const core::TrainingOptions& options);
/// Lanes are filled in.
core::Result<void> check_options(const core::TrainingOptions& options, int data_parallel);

}  // namespace troupe::actors
