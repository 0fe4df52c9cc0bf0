#pragma once

#include <span>
#include <string>

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// Lists `launch` in the help of `troupe`. Its command line is not read by CLI11 together with the others',
/// because what follows the program belongs to the program: see run_launch().
void add_launch_command(CLI::App& troupe, int& exit_code);

/// What follows `troupe launch` on the command line. Returns the exit code: 0, 1 when a rank failed and no
/// restart is left, 2 when it was started wrongly, 128+n when signal n stopped it, and 75, 93 or 97 when a
/// rank ended with that code.
int run_launch(std::span<const std::string> arguments);

}  // namespace troupe::apps
