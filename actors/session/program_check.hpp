#pragma once

#include <cstdint>

#include "actors/session/context.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Runs the programs of all ranks against each other (core::check_programs), with the operations that their
/// trainers declare: rank 0 does, and all ranks get its verdict, the same Error. Called by all ranks alike,
/// with another `attempt` each time.
core::Result<void> check_programs_of_ranks(const SessionContext& in, std::uint64_t attempt);

}  // namespace troupe::actors
