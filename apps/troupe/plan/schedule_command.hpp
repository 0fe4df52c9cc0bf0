#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// `troupe plan schedule`. What went wrong is printed, and ends up in `exit_code`.
void add_schedule_command(CLI::App& plan, int& exit_code);

}  // namespace troupe::apps
