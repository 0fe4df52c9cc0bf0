#pragma once

#include <vector>

#include "actors/session/options.hpp"
#include "actors/shell/process_world.hpp"
#include "core/options/training_table.hpp"

namespace troupe::actors {

/// The options of a rank of a job, those of training among them. What they refer to must outlive them.
std::vector<core::CommonOption> common_options(ProcessWorldOptions& world, SessionOptions& session);

}  // namespace troupe::actors
