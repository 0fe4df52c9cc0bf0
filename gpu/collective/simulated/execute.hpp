#pragma once

#include <cstdint>
#include <span>

#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Executes as one the members' prepared operations, given in group order; for a message the sender's, then
/// the receiver's. They must agree (find_disagreement()).
void execute_together(std::span<const Operation* const> operations);

/// The bytes sent by the busiest member, for the model of the operation's duration.
std::uint64_t bytes_on_the_wire(const Operation& operation, int size);

}  // namespace troupe::gpu
