#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// Adds `troupe checkpoint` with its commands, which need neither a device nor a model. The exit code becomes
/// 0 when all is well, 1 when something is damaged or different, and 2 when the command could not be carried
/// out.
void add_checkpoint_command(CLI::App& troupe, int& exit_code);

}  // namespace troupe::apps
