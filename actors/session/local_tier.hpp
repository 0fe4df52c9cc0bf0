#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "actors/planes/checkpoint/plane.hpp"
#include "actors/planes/replica/plane.hpp"
#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/checkpoint/cliques.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// The local tier of one rank: its roles and the planes that carry out their work.
class LocalTier {
 public:
  /// A save that holds up updates for longer than `hold_deadline` fails. Errc::invalid_argument for
  /// impossible cliques or budgets. Everything given must outlive it.
  static core::Result<std::unique_ptr<LocalTier>> create(RankWorld& world, const DataPlane& data,
                                                         const RankState& state,
                                                         std::span<const gpu::BufferView> memory,
                                                         std::uint32_t buckets,
                                                         core::LocalTierOptions options,
                                                         std::chrono::nanoseconds hold_deadline);

  void spawn_roles();
  /// Before the first exchange; a clique of one rank has no group.
  void set_group(std::unique_ptr<gpu::Group> group) { replicas_->set_group(std::move(group)); }
  /// For the rank's own copy. From any thread, as are all of these.
  void perform(const CheckpointWork& work) { copies_->perform(work); }
  void perform(const ReplicaWork& work) { replicas_->perform(work); }
  void abort(const core::Error& reason) { replicas_->abort(reason); }

  const std::vector<core::Clique>& cliques() const { return cliques_; }
  const core::Clique& clique() const { return core::clique_of(world_.rank(), cliques_); }
  const core::LocalTierOptions& options() const { return options_; }
  static core::Result<std::vector<core::Clique>> cliques_of(const core::LocalTierOptions& options,
                                                            core::WorldSize world);
  /// A line of the job's configuration, the same on all ranks.
  static std::string configuration(const std::vector<core::Clique>& cliques);

 private:
  LocalTier(RankWorld& world, const RankState& state, std::uint32_t buckets, core::LocalTierOptions options,
            std::chrono::nanoseconds hold_deadline)
      : world_(world),
        state_(state),
        buckets_(buckets),
        options_(std::move(options)),
        hold_deadline_(hold_deadline) {}
  core::Result<void> open(const DataPlane& data, std::span<const gpu::BufferView> memory);

  RankWorld& world_;
  const RankState& state_;
  std::uint32_t buckets_;
  core::LocalTierOptions options_;
  std::chrono::nanoseconds hold_deadline_;
  std::vector<core::Clique> cliques_;
  std::unique_ptr<CheckpointPlane> copies_;  ///< writes the rank's own copy
  std::unique_ptr<ReplicaPlane> replicas_;
};

}  // namespace troupe::actors
