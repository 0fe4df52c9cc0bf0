#pragma once

#include <cstdint>
#include <span>

#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Does at once what the members' prepared operations, in group order, mean together; for a message the
/// sender's and then the receiver's. They agree (find_disagreement()).
void execute_together(std::span<const Operation> operations);

/// The bytes that the busiest member sends, for the model of its duration.
std::uint64_t bytes_on_the_wire(const Operation& operation, int size);

}  // namespace troupe::gpu
