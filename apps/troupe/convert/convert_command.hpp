#pragma once

#include "apps/command_line/app.hpp"

namespace troupe::apps {

/// `troupe convert config` and `troupe convert weights`: models of Hugging Face and Megatron. Bad input sets
/// `exit_code` to 2.
void add_convert_command(CLI::App& troupe, int& exit_code);

}  // namespace troupe::apps
