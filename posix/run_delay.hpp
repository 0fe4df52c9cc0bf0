#pragma once

#include <chrono>

namespace troupe::posix {

/// How long the calling thread has been ready to run while others had the processors, since it began: the
/// scheduler's run delay. 0 where the system does not tell. It takes some microseconds to ask.
std::chrono::nanoseconds run_delay();

}  // namespace troupe::posix
