#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/command_line/app.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// The name as flags spell it, with a hyphen.
std::string flag_name(core::ScheduleKind kind);
/// Errc::invalid_argument for options that make no sense without the others.
core::Result<void> check_pipeline_options(const TrainerOptions& options, bool is_local);
/// Adds what a report shows, if there is a pipeline.
void describe_pipeline(const TrainerOptions& options,
                       std::vector<std::pair<std::string, std::string>>& configuration);

}  // namespace troupe::apps::gpt
