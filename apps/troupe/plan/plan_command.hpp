#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// `troupe plan layout`, `program`, `check` and `capacity`: what every rank of a job computes for
/// itself. Bad input sets `exit_code` to 2.
void add_plan_command(CLI::App& troupe, int& exit_code);

}  // namespace troupe::apps
