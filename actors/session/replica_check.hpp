#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/context.hpp"
#include "actors/session/groups.hpp"
#include "actors/session/replicas.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/step_count.hpp"
#include "gpu/buffer.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/stream.hpp"

namespace troupe::actors {

/// The first parameter of which ranks that should have the same part have other bits.
struct ReplicaDifference {
  std::string parameter;
  std::vector<core::Rank> differing;  ///< of any parameter: the ranks that do not agree with the most
  std::vector<core::Rank> agreeing;   ///< more than agree on any other value; empty where there are no such

  friend bool operator==(const ReplicaDifference&, const ReplicaDifference&) = default;
};

/// `hashes[i]` are those of rank ranks[i], one for each of the names. There is a difference among them.
ReplicaDifference difference_of(const std::vector<core::Rank>& ranks, const std::vector<std::string>& names,
                                const std::vector<std::vector<std::uint64_t>>& hashes);

/// Compares between steps what several ranks keep of the model: their bits are the same unless a memory, a
/// processor or a trainer has changed them. Used by the trainer's thread, by all ranks alike.
class ReplicaCheck {
 public:
  /// Everything given must outlive it.
  ReplicaCheck(const SessionContext& context, GroupMaker groups)
      : in_(context), groups_(groups), replicas_(context), copies_(context) {}
  ReplicaCheck(const ReplicaCheck&) = delete;
  ReplicaCheck& operator=(const ReplicaCheck&) = delete;

  /// After this many steps, whose updates are complete. Where ranks differ, the ones that more others
  /// contradict than agree with get Errc::corrupt and all others Errc::peer_lost; where it cannot be told
  /// which are right all get Errc::mismatch. All name the ranks and a parameter.
  core::Result<void> run(core::StepCount over);
  /// From any thread: a comparison that runs, and later ones, end in `reason`.
  void abort(const core::Error& reason);

 private:
  struct Member {
    std::vector<SharedParameters> shared;
    std::unique_ptr<gpu::Group> group;
  };

  core::Result<void> meet();
  core::Result<bool> is_alike(Member& member, const std::vector<std::uint64_t>& hashes);
  core::Result<void> name(const Member& member, const std::vector<std::uint64_t>& hashes,
                          core::StepCount over);

  const SessionContext& in_;
  GroupMaker groups_;
  Replicas replicas_;
  DeviceCopies copies_;
  bool has_met_ = false;
  std::map<std::vector<core::Rank>, Member> members_;  ///< in the same order on all ranks
  gpu::Stream stream_;
  gpu::Buffer words_;
  std::mutex mutex_;                      // guards what follows
  std::vector<gpu::Group*> groups_made_;  ///< of members_
  std::optional<core::Error> aborted_;    ///< the first reason
};

}  // namespace troupe::actors
