#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// The commands that write a checkpoint anew.
void add_reshard(CLI::App& checkpoint, int& exit_code);
void add_import(CLI::App& checkpoint, int& exit_code);
void add_export(CLI::App& checkpoint, int& exit_code);

}  // namespace troupe::apps
