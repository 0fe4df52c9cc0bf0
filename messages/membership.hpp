#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "messages/failure.hpp"

namespace troupe::messages {

/// RankSupervisor to Coordinator: this rank is here, with these settings and this plan.
struct Join {
  core::Rank rank{};
  core::WorldSize world{};
  std::uint64_t plan_hash = 0;  ///< of the collective plan and the layouts
  std::string configuration;    ///< one line per setting that all ranks must share
  std::int32_t stage = 0;       ///< ranks that keep the same part of the model have the same plan

  friend bool operator==(const Join&, const Join&) = default;
};

/// Coordinator to a RankSupervisor whose plan differs: asks for a part of the plan as text, one line per
/// entry, from line `first` on in blocks of `block` lines. The answer is the hash of each block, or the lines
/// themselves if a block is one line; at most kPlanFanOut of them.
struct PlanPartWanted {
  std::uint64_t first = 0;
  std::uint64_t block = 1;

  friend bool operator==(const PlanPartWanted&, const PlanPartWanted&) = default;
};
struct PlanHashes {
  core::Rank rank{};
  std::uint64_t first = 0;
  std::uint64_t block = 1;
  std::vector<std::uint64_t> hashes;

  friend bool operator==(const PlanHashes&, const PlanHashes&) = default;
};
struct PlanLines {
  core::Rank rank{};
  std::vector<std::string> lines;

  friend bool operator==(const PlanLines&, const PlanLines&) = default;
};

/// Coordinator to every RankSupervisor: all members are here and agree; the envelope's epoch is now valid.
struct Welcome {
  std::vector<core::Rank> members;

  friend bool operator==(const Welcome&, const Welcome&) = default;
};

/// Coordinator to every RankSupervisor: the job does not form, and why.
struct Refused {
  Failure failure;

  friend bool operator==(const Refused&, const Refused&) = default;
};

/// Network to Coordinator or RankSupervisor of its own rank: the connection to a rank is gone.
struct PeerLost {
  core::Rank rank{};
  Failure failure;

  friend bool operator==(const PeerLost&, const PeerLost&) = default;
};

/// RankSupervisor to Coordinator: this rank cannot continue in this epoch.
struct RankFailed {
  core::Rank rank{};
  Failure failure;

  friend bool operator==(const RankFailed&, const RankFailed&) = default;
};

/// Coordinator to every RankSupervisor: the envelope's epoch has ended.
struct Fence {
  core::Rank culprit{};
  Failure failure;

  friend bool operator==(const Fence&, const Fence&) = default;
};

/// RankSupervisor to Coordinator: this rank has finished its work successfully; and the Coordinator's answer
/// to all when every rank has.
struct Leave {
  core::Rank rank{};

  friend bool operator==(const Leave&, const Leave&) = default;
};
struct Farewell {
  std::uint32_t members = 0;

  friend bool operator==(const Farewell&, const Farewell&) = default;
};

}  // namespace troupe::messages
