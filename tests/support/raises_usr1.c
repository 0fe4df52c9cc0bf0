// Preloaded into a program: a signal that comes while the libraries prepare themselves, long before main().
#include <signal.h>

__attribute__((constructor)) static void raise_early(void) {
  raise(SIGUSR1);
  raise(SIGUSR2);
}
