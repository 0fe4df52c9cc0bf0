#pragma once

#include <CLI/CLI.hpp>

namespace troupe::apps {

/// All commands of `troupe`, whose callbacks run them and leave their exit code.
void add_commands(CLI::App& troupe, int& exit_code);

}  // namespace troupe::apps
