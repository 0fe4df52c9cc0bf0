#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/load_exchange.hpp"
#include "actors/planes/step/launches.hpp"
#include "actors/session/held_boxes.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/trainer_inbox.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/world/storage.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/shared_load.hpp"
#include "core/checkpoint/survivors.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// One rank's part in one attempt of all ranks to load a checkpoint: read() or withdraw(), then, once all
/// ranks have agreed that everything was read, exchange(). Used by the trainer's thread.
class JointLoad {
 public:
  /// All of these must outlive the load.
  struct Surroundings {
    RankWorld& world;
    TrainerInbox& inbox;
    gpu::Rendezvous& rendezvous;
    Launches& launches;
    HostExchange* hosts;  ///< moves the exchanged data; null: the data plane does
    const core::LoadOptions& options;
    std::chrono::nanoseconds deadline;
    bool knows_others;  ///< this rank knows what others read: all keep the same part of the model
  };

  /// `attempt` is the prefix of the keys in the job's store; no other attempt has it.
  JointLoad(Surroundings surroundings, std::string attempt)
      : in_(surroundings), attempt_(std::move(attempt)) {}
  JointLoad(const JointLoad&) = delete;
  JointLoad& operator=(const JointLoad&) = delete;

  /// Reads what this rank wants, or the part of it that the ranks' plan assigns to this rank. `shared` is
  /// what all ranks want, known to all of them; this rank reads those of its targets that are not in it.
  /// `uploads` are as in ReadOptions, in use until exchange() has ended. Otherwise as read_tensors(); also
  /// Errc::mismatch for a rank whose plan differs from rank 0's.
  core::Result<void> read(Storage& storage, const std::string& name, const core::Manifest& manifest,
                          const core::SharedTargets& shared, std::vector<core::LoadTarget> targets,
                          std::vector<std::span<std::byte>> memory, UploadPool* uploads);
  /// Instead of read() and exchange(): ranks have in memory what they give to those that want it. By all
  /// ranks alike, which have the same plan; it must outlive the load. `uploads` as in read().
  core::Result<void> share(const core::Survival& survival, LoadExchange::Wanted wanted, const HeldBoxes& held,
                           UploadPool* uploads);
  /// This rank has no plan, for whatever reason; the others need not wait for it. Does nothing after read().
  core::Result<void> withdraw();
  /// Brings what other ranks have read. After an Error no rank can continue: the state is partly loaded.
  core::Result<void> exchange();

 private:
  struct Round {
    gpu::Buffer outgoing;
    gpu::Buffer incoming;
  };

  bool may_exchange() const;
  core::Result<void> make_rounds();
  void post_round(LoadedBytes bytes);
  gpu::BufferView place_of(std::uint64_t round, std::size_t bytes) const;
  core::Result<void> agree(std::optional<std::uint64_t> plan);
  core::Result<void> prepare_exchange(core::SharedLoadPlan plan, const core::SharedTargets& shared,
                                      LoadExchange::Wanted& alone);

  Surroundings in_;
  std::string attempt_;
  bool agreed_ = false;
  core::Manifest manifest_;                       ///< the plan points into it
  std::optional<LoadExchange> exchange_;          ///< empty: this rank reads everything that it wants
  std::array<std::shared_ptr<Round>, 2> rounds_;  ///< shared with the operation that uses it
};

}  // namespace troupe::actors
