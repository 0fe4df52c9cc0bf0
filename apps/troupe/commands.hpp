#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// All commands of `troupe`, whose callbacks run them and leave their exit code.
void add_commands(CLI::App& troupe, int& exit_code);
/// The program `troupe`; returns its exit code.
int run_troupe(int argc, char** argv);

}  // namespace troupe::apps
