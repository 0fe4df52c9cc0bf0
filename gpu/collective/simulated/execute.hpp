#pragma once

#include <cstdint>
#include <span>

#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Executes the members' prepared operations as one. They are given in group order; for a message the
/// sender's comes first, then the receiver's. They must agree (find_disagreement()).
void execute_together(std::span<const Operation* const> operations);

/// The bytes sent by the busiest member, for the model of the operation's duration.
std::uint64_t bytes_on_the_wire(const Operation& operation, int size);

}  // namespace troupe::gpu
