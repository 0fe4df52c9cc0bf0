#pragma once

namespace troupe::apps::gpt {

/// The program `troupe-gpt`; returns its exit code.
int run_command(int argc, char** argv);

}  // namespace troupe::apps::gpt
