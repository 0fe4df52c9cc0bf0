#include "apps/troupe/commands.hpp"
#include "posix/early_signals.hpp"
#include "posix/standard_streams.hpp"

int main(int argc, char** argv) {
  troupe::posix::open_missing_standard_streams();
  return troupe::apps::run_troupe(argc, argv);
}
