#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// `troupe bench pipeline`: bubbles of pipeline schedules as they are carried out, beside their theory.
void add_pipeline_bench(CLI::App& bench, int& exit_code);

}  // namespace troupe::apps
