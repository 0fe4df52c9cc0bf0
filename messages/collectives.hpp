#pragma once

#include <cstdint>

#include "core/ids.hpp"
#include "messages/failure.hpp"

namespace troupe::messages {

/// Any role to Conductor: the inputs of entry `entry` of the plan are enqueued on the device; launch it when
/// its turn comes.
struct CollectiveReady {
  core::Step step{};
  core::PlanEntryIndex entry{};

  friend bool operator==(const CollectiveReady&, const CollectiveReady&) = default;
};

/// Device to Conductor, and Conductor to the requester: the device has passed the entry.
struct CollectiveDone {
  core::Step step{};
  core::PlanEntryIndex entry{};
  std::uint64_t sequence = 0;  ///< counts the launches of this device in this epoch, from 0
  Failure failure;

  friend bool operator==(const CollectiveDone&, const CollectiveDone&) = default;
};

/// Conductor to RankSupervisor: a collective failed or passed its deadline; nothing more will be launched.
struct CollectiveFailed {
  core::Step step{};
  core::PlanEntryIndex entry{};
  std::uint64_t sequence = 0;
  Failure failure;

  friend bool operator==(const CollectiveFailed&, const CollectiveFailed&) = default;
};

}  // namespace troupe::messages
