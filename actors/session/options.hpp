#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/load_exchange.hpp"
#include "actors/planes/step/job.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/roles/checkpoint_coordinator.hpp"
#include "actors/session/local_tier.hpp"
#include "actors/world/storage.hpp"
#include "core/state/strictness.hpp"

namespace troupe::actors {

/// How a session saves and loads; where is the world's business (RankWorld::storage).
struct CheckpointOptions {
  /// Most memory for state that is copied but not written yet; a smaller state takes less. A smaller budget
  /// makes the next update wait for the disk; nothing else depends on it.
  std::uint64_t staging_bytes = std::uint64_t{256} << 20;
  std::uint64_t chunk_bytes = std::uint64_t{8} << 20;  ///< staged and written at once
  Retention retention;
  WhenBusy when_busy = WhenBusy::queue;
  LoadOptions load;                                              ///< who reads what in a restore
  std::chrono::nanoseconds deadline = std::chrono::minutes(30);  ///< of a phase of a save, and of a restore
};

struct SessionOptions {
  TrainingOptions training;
  /// Tensors of the trainer's own, which saves and restores take along. Ranks may have different ones; all
  /// their parts together must make up whole tensors.
  std::vector<TrainerTensor> tensors{};
  CheckpointOptions checkpoint;
  LocalTierOptions local;
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(60);
  /// After this a collective counts as hung. The trainer itself waits three times as long: what it waits for
  /// has a deadline of its own, whose error says more.
  std::chrono::nanoseconds step_deadline = std::chrono::seconds(300);
  /// Record what actors, streams and the trainer do (take_trace()). Tasks of streams are those of the whole
  /// device: sessions that share one cannot all be traced.
  bool trace = false;
};

struct RestoreOptions {
  Storage* from = nullptr;  ///< null: the world's storage
  std::string name;         ///< of a checkpoint in it; empty: the newest one that is whole
  bool optimizer = true;    ///< otherwise weights only: moments and counters begin anew
  /// About tensors that only the job or only the checkpoint has. What the checkpoint lacks and the mode
  /// tolerates keeps its values. A local save has exactly the tensors of its job.
  core::Strictness strictness = core::Strictness::raise_unexpected;
};

}  // namespace troupe::actors
