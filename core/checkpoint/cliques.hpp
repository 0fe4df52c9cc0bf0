#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Cliques of `factor` ranks, `jump` apart: with a jump equal to the number of ranks per node, every copy is
/// on another node. Errc::invalid_argument unless both are positive and jump x factor divides the world.
Result<std::vector<Clique>> make_cliques(WorldSize world, int jump, int factor);

/// Cliques of `factor` ranks or more for any number of ranks, as far apart as they can be: rank r is in the
/// r mod n-th of n cliques. A smaller world is one clique. `factor` is positive.
std::vector<Clique> spread_cliques(WorldSize world, int factor);

/// The same cliques with their members in ascending order, provided that they partition the world.
/// Errc::invalid_argument names a rank that is in none, in two, or not in the world.
Result<std::vector<Clique>> sorted_cliques(WorldSize world, std::vector<Clique> cliques);

/// The clique of a rank; the cliques must be a partition.
const Clique& clique_of(Rank rank, std::span<const Clique> cliques);

/// One save of the local tier. The step alone does not identify it: a job that lost its newest copies trains
/// the same step again.
struct CopyName {
  StepCount step{};  ///< steps completed
  std::uint64_t save = 0;

  friend auto operator<=>(const CopyName&, const CopyName&) = default;
};

/// A complete copy of the owner's state, held by a rank.
struct HeldCopy {
  CopyName name;
  Rank owner{};
  std::uint64_t bytes = 0;     ///< size when sent to another rank
  WorldSize world{};           ///< the number of ranks that saved
  std::uint64_t layout = 0;    ///< layout_hash() of what it contains
  std::optional<Rank> beside;  ///< whose storage it is in, if it is not in the holder's own

  friend bool operator==(const HeldCopy&, const HeldCopy&) = default;
};

/// Per rank of the job.
using Holdings = std::vector<std::vector<HeldCopy>>;

/// The rank that gives what is in one owner's copy to those that want it.
struct CopyGiver {
  Rank from{};
  Rank storage{};  ///< whose storage it is in: that rank's own, or one beside it
  std::uint64_t layout = 0;

  friend bool operator==(const CopyGiver&, const CopyGiver&) = default;
};

struct LatestCopies {
  std::optional<CopyName> name;
  std::vector<CopyGiver> givers;         ///< by owner; empty: every clique restores it by itself
  std::vector<std::string> passed_over;  ///< newer saves, and the ranks whose copies are missing
};

/// The newest save that can be restored. Every clique does it by itself if it was saved by as many ranks,
/// each of which wants what its copy contains (`wants` has the layout_hash() for each rank; empty: all do),
/// and if some member holds a copy for each member. Any other save has givers, provided that somebody holds a
/// copy of each owner: no rank gives much more than others.
LatestCopies find_latest(const Holdings& holdings, std::span<const Clique> cliques,
                         std::span<const std::uint64_t> wants = {});

/// A copy that one member sends to the members that lack it.
struct CopyTransfer {
  Rank owner{};
  Rank from{};
  std::uint64_t bytes = 0;
  std::vector<Rank> to;

  friend bool operator==(const CopyTransfer&, const CopyTransfer&) = default;
};

/// The transfers that give every member's copy of a save to all members that lack it: an owner sends its own
/// copy; other copies come from the holder with the fewest bytes to send so far, the lowest rank winning a
/// tie. Errc::not_found names a member whose copy nobody in the clique holds.
Result<std::vector<CopyTransfer>> plan_retrieval(const CopyName& wanted, const Holdings& holdings,
                                                 const Clique& clique);

/// The transfers of a new save: every member sends its own copy to all others.
std::vector<CopyTransfer> plan_replication(const Clique& clique, std::span<const std::uint64_t> bytes);

}  // namespace troupe::core
