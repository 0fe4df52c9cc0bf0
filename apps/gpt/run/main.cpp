#include <unistd.h>

#include <cstdio>

#include "apps/gpt/run/command.hpp"
#include "posix/early_signals.hpp"
#include "posix/standard_streams.hpp"

int main(int argc, char** argv) {
  troupe::posix::open_missing_standard_streams();
  const int code = troupe::apps::gpt::run_command(argc, argv);
  if (code == 0) return 0;
  // At exit OpenBLAS waits for its threads, and they may be looking for memory for ever.
  std::fflush(nullptr);
  ::_exit(code);
}
