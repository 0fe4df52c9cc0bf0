#pragma once

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/shared_memory/arena.hpp"

namespace troupe::gpu {

/// Runs a prepared collective to its end in the calling thread. One at a time for each member of the arena.
core::Result<void> run_collective(Arena& arena, const Operation& operation,
                                  const OperationDeadline& deadline);

/// Runs a prepared send or receive. One at a time for each direction of a pair.
core::Result<void> run_message(Arena& arena, const Operation& operation, const OperationDeadline& deadline);

}  // namespace troupe::gpu
