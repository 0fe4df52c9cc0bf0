#pragma once

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/shared_memory/arena.hpp"

namespace troupe::gpu {

/// Runs a prepared collective to completion in the calling thread. One at a time per member of the arena.
core::Result<void> run_collective(Arena& arena, const Operation& operation,
                                  const OperationDeadline& deadline);

/// Runs a prepared send or receive. One at a time per direction of a pair.
core::Result<void> run_message(Arena& arena, const Operation& operation, const OperationDeadline& deadline);

}  // namespace troupe::gpu
