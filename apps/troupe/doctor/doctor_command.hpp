#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// `troupe doctor [--json]`: what this build and this machine can do. Exit code 1 if something Troupe cannot
/// do without is broken.
void add_doctor_command(CLI::App& troupe, int& exit_code);

}  // namespace troupe::apps
