#pragma once

namespace troupe::posix {

/// Ignores SIGUSR1 and SIGUSR2 until somebody handles them: a process that is asked who waits for whom before
/// it can answer must not die of that. The first thing in main().
void ignore_early_signals();

}  // namespace troupe::posix
