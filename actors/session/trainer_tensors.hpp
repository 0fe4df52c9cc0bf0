#pragma once

#include "actors/session/context.hpp"
#include "core/result.hpp"
#include "core/state/strictness.hpp"

namespace troupe::actors {

/// Tells all ranks the keys of the others' own tensors, one set for each rank, and whether the parts form
/// whole tensors, and those of the parameters whole parameters whose names no other part of the model has:
/// otherwise Errc::mismatch on all of them. Called by all ranks while they join.
core::Result<core::KeyRequests> agree_on_tensors(const SessionContext& context);

}  // namespace troupe::actors
