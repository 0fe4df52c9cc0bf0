#pragma once

#include <signal.h>

#include <initializer_list>

namespace troupe::posix {

/// Ignores SIGUSR1 and SIGUSR2 until somebody handles them: a process that is asked who waits for whom before
/// it can answer must not die of that.
inline void ignore_early_signals(int, char**, char**) {
  for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
}

/// Included by a program's main.cpp only: the loader calls it before the libraries prepare themselves, which
/// takes longer than all else before main().
[[gnu::section(".preinit_array"),
  gnu::used]] static void (*const ignore_signals_first)(int, char**, char**) = ignore_early_signals;

}  // namespace troupe::posix
