#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// `troupe bench collectives`: measures the back-ends against each other on this machine.
void add_bench_command(CLI::App& app, int& exit_code);

}  // namespace troupe::apps
