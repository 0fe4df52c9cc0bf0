#include "posix/early_signals.hpp"

#include <signal.h>

#include <initializer_list>

namespace troupe::posix {

void ignore_early_signals() {
  for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
}

}  // namespace troupe::posix
