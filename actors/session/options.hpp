#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "actors/planes/step/trainer_tensor.hpp"
#include "actors/session/trainer_group.hpp"
#include "core/options/options.hpp"
#include "core/state/strictness.hpp"

namespace troupe::actors {

class Storage;

struct SessionOptions {
  core::TrainingOptions training;
  /// For collectives of the trainer's own, by Session::group(). The same on all ranks.
  std::vector<TrainerGroupSpec> groups{};
  /// Tensors of the trainer's own, which saves and restores take along. Ranks may have different ones; all
  /// their parts together must make up whole tensors.
  std::vector<TrainerTensor> tensors{};
  core::CheckpointOptions checkpoint;
  core::LocalTierOptions local;
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
