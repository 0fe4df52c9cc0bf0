#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/planes/step/trainer_tensor.hpp"
#include "actors/session/trainer_group.hpp"
#include "core/options/options.hpp"
#include "core/state/strictness.hpp"

namespace troupe::actors {

class Storage;

/// What is done about parameters before the first step, where several ranks keep the same values.
enum class FirstValues : std::uint8_t {
  compare,    ///< begin_step() is Errc::mismatch on all ranks, and names the parameter and two ranks
  broadcast,  ///< all take those of the first rank that keeps them
};

struct SessionOptions {
  core::TrainingOptions training;
  /// What shapes the trainer's own course, as name and value: options, a hash of its data. The same names on
  /// all ranks; join() names the first value that differs. Leave out what may differ, such as folders.
  std::vector<std::pair<std::string, std::string>> configuration{};
  FirstValues first_values = FirstValues::compare;
  /// Where several ranks keep the same parameters, their bits are compared before each step whose number is a
  /// multiple of this, and before each save() and save_local(): a memory or a processor that computes wrongly
  /// is found, and its results are not saved. One pass over the parameters. The rank that most others
  /// contradict ends with Errc::corrupt, and the others as when a rank is lost; without a majority it is
  /// Errc::mismatch on all. 0: never. The same on all ranks.
  int compare_replicas_every = 0;
  /// For the trainer's own collectives, by Session::group(). The same on all ranks.
  std::vector<TrainerGroupSpec> groups{};
  /// The trainer's own tensors, included in saves and restores. Ranks may have different ones; all their
  /// parts together must make up whole tensors.
  std::vector<TrainerTensor> tensors{};
  /// For a trainer that begins a lane before it has ended the previous one, such as a pipeline stage: its
  /// passes in a step, in order. All ranks that keep the same stage give the same list, with as many rounds
  /// as the rank with the most lanes has (docs/pipelines.md). Where there are Session::units() the trainer
  /// begins each pass with begin_pass(); elsewhere the list has no effect. Empty: lane after lane.
  std::vector<core::UnitPass> passes{};
  /// The order in which forward and backward use units, if it is not that of their numbers: units are
  /// gathered ahead, acquired and reduced in this order. The same on all ranks that keep the same part of the
  /// model; not together with `passes`. It changes no bits, and checkpoints do not depend on it.
  core::DeclaredOrder order{};
  /// Collectives that the trainer posts on "tp", "cp" and "ep" within a lane; those of one unit and pass in
  /// posting order. Once a group has declared operations, any other post on it within a lane is refused, and
  /// the lane cannot end until all are posted. Where there are Session::units() each is posted while its unit
  /// is acquired; elsewhere only their order counts, forward of all units before backward. The same on all
  /// ranks; not in a pipeline. Groups without declared operations are free, and so is what is posted outside
  /// of lanes (docs/decisions/0017-declared-operations.md).
  std::vector<core::DeclaredOperation> operations{};
  core::CheckpointOptions checkpoint;
  core::LocalTierOptions local;
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(60);
  /// After this a collective counts as hung. The trainer itself waits three times as long: what it waits for
  /// has its own deadline, whose error says more.
  std::chrono::nanoseconds step_deadline = std::chrono::seconds(300);
  /// Record what actors, streams and the trainer do (take_trace()). Stream tasks are those of the whole
  /// device: sessions that share a device cannot all be traced.
  bool trace = false;
};

struct RestoreOptions {
  Storage* from = nullptr;  ///< null: the world's storage
  std::string name;         ///< of a checkpoint in it; empty: the newest complete one
  bool optimizer = true;    ///< otherwise weights only: moments and counters start anew
  /// What to do about tensors that only the job or only the checkpoint has. Tensors that the checkpoint lacks
  /// and the mode tolerates keep their values. A local save has exactly the tensors of its job.
  core::Strictness strictness = core::Strictness::raise_unexpected;
};

}  // namespace troupe::actors
