#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "actors/launch/node_agent.hpp"
#include "actors/world/epochs.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

// What the launcher of node 0 makes of what processes declare.

/// What the process in a slot has declared last.
using DeclaredIn = std::function<std::optional<Membership>(int slot)>;

/// What these processes have made of the epoch.
Standing standing_of(const std::vector<int>& slots, core::Epoch epoch, const DeclaredIn& declared);

/// By place in `slots`: whether the process has lost another one of the epoch and waits for the next. The
/// last one is asked first: mostly it does not wait, and where two do not, no other needs to be asked.
std::vector<bool> waiting_of(const std::vector<int>& slots, core::Epoch epoch, const DeclaredIn& declared);

/// By place in `slots`: whether the process has no rank, as far as it knows.
std::vector<bool> standing_by(const std::vector<int>& slots, const DeclaredIn& declared);

}  // namespace troupe::actors
