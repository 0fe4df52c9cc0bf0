#pragma once

#include "core/result.hpp"

namespace troupe::actors {

/// Whether this process can have that many more threads: it starts them and lets them end. For what starts
/// threads in libraries, which do not survive it if they get none. Errc::unavailable names the limit.
core::Result<void> check_threads(int count);

}  // namespace troupe::actors
