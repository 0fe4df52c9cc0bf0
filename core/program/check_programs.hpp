#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/list.hpp"
#include "core/plan/mesh.hpp"
#include "core/program/program.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A rank of a check. Ranks may share a program.
struct CheckedRank {
  std::string name;  ///< for people: "rank 3"
  const Program* program = nullptr;
};

/// A process group of a check; every rank is in at most one of each kind.
struct CheckedGroup {
  GroupKind kind = GroupKind::world;
  std::vector<int> members;  ///< indices of ranks, in group order
  /// The size of the real group, which `members` may only represent; the entries' counts must be for it.
  std::int64_t size = 0;
};

struct CheckedJob {
  List<int, CheckedRank> ranks;
  std::vector<CheckedGroup> groups;
};

/// Runs the programs of all ranks against each other for one step: each rank's trainer passes its points in
/// order, waiting for the entries and credits that a point needs, and in it for all members of the groups of
/// its own operations, one operation after another; each stream takes its entries in order; an
/// entry runs when its point has passed, its input is there, it has its credit, and all members have come to
/// it.
///
/// PR-1: every entry of every rank comes to its end. Otherwise Errc::aborted names the circle of those that
/// wait for each other, by rank, entry, group and point, or the rank which never launches what others wait
/// for.
/// PR-2: members of a group meet with the same operation, tensor, placements, dtype, counts and chunk.
/// Otherwise Errc::mismatch names the two entries, the group and what differs, and says so when two entries
/// have changed places.
/// PR-3: no pool has more users than slots, and every slot comes back. Otherwise Errc::internal names the
/// entry.
/// PR-4: gradients of a class with also_sum are summed over its group once per step, after their last
/// reduction and in the order of these. Otherwise Errc::mismatch names the tensor.
/// PR-5: every operation of a trainer's own is met by all members of its group, in the same order and at the
/// same point, before that point has ended; they agree on operation, dtype and counts, and bounded counts
/// come after an exchange of counts. Otherwise the error is as of PR-1 and PR-2.
/// PR-6: an entry's recipe waits for nothing that no work before it records, and gives back each staging
/// credit that it takes; all ranks agree on when entries are ready. Otherwise Errc::mismatch names the entry
/// or the ranks.
Result<void> check_programs(const CheckedJob& job);

/// The whole job on a mesh: programs[r] is that of global rank r.
CheckedJob checked_job(const Mesh& mesh, const std::vector<const Program*>& programs);

}  // namespace troupe::core
