#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/plane.hpp"
#include "actors/planes/replica/plane.hpp"
#include "actors/session/context.hpp"
#include "actors/session/groups.hpp"
#include "core/checkpoint/cliques.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The local tier of one rank: its roles and the planes that carry out their work.
class LocalTier {
 public:
  /// Errc::invalid_argument for impossible cliques or budgets. The context must outlive it.
  static core::Result<std::unique_ptr<LocalTier>> create(const SessionContext& context);

  void spawn_roles();
  /// Makes the group of the clique, where it has several ranks, and tells the keeper the job's seed. Before
  /// the first exchange, by all ranks alike.
  core::Result<void> connect(const GroupMaker& groups);
  /// For the rank's own copy. From any thread, as are all of these.
  void perform(const CheckpointWork& work) { copies_->perform(work); }
  void perform(const ReplicaWork& work) { replicas_->perform(work); }
  void abort(const core::Error& reason) { replicas_->abort(reason); }

  const std::vector<core::Clique>& cliques() const { return cliques_; }
  const core::Clique& clique() const { return core::clique_of(in_.rank(), cliques_); }
  const core::LocalTierOptions& options() const { return in_.options.local; }
  static core::Result<std::vector<core::Clique>> cliques_of(const core::LocalTierOptions& options,
                                                            core::WorldSize world);
  /// A line of the job's configuration, the same on all ranks.
  static std::string configuration(const std::vector<core::Clique>& cliques);

 private:
  explicit LocalTier(const SessionContext& context) : in_(context) {}
  core::Result<void> open();

  const SessionContext& in_;
  std::vector<core::Clique> cliques_;
  std::unique_ptr<CheckpointPlane> copies_;  ///< writes the rank's own copy
  std::unique_ptr<ReplicaPlane> replicas_;
};

}  // namespace troupe::actors
