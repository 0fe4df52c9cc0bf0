#pragma once

namespace CLI {
class App;
}

namespace troupe::apps {

/// `troupe simulate`: a whole job in one thread under virtual time. Exit code 0; 1 when an invariant was
/// violated or a rank failed although no fault was injected; 2 for arguments that cannot be right.
void add_simulate_command(CLI::App& troupe, int& exit_code);

}  // namespace troupe::apps
