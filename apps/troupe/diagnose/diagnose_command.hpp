#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// `troupe diagnose`: says by ranks' flight records who holds up a job.
void add_diagnose_command(CLI::App& troupe, int& exit_code);

}  // namespace troupe::apps
