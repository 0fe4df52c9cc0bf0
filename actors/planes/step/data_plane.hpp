#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "actors/planes/step/communication.hpp"
#include "actors/planes/step/exposure.hpp"
#include "actors/planes/step/gradient_sums.hpp"
#include "actors/planes/step/launches.hpp"
#include "actors/planes/step/shard_updates.hpp"
#include "actors/planes/step/step_context.hpp"
#include "actors/planes/step/step_verdict.hpp"
#include "actors/planes/step/trainer_marks.hpp"

namespace troupe::actors {

/// One rank's tensors and streams, and the work that machines ask for. It executes the rank's program
/// (core/program): every launch follows from its entry. It decides nothing and waits for nothing: everything
/// is enqueued, and completions come back as messages. "accumulate" joins lanes, "communication" carries
/// collectives, "update" sums trees, measures and steps the optimizer.
///
/// DP-1: a gradient range is written by the trainer only before PrepareBucket of its last lane (of each lane,
/// if each round reduces gradients) and after the bucket's ShardStepped (after LaneMerged); by the device
/// only between them.
class DataPlane {
 public:
  using Options = DataPlaneOptions;

  /// Allocates everything that a step needs: nothing is allocated later, except on a GPU for `ordered` sums
  /// of more than 256 terms (CudaKernels::tree_sum). `plan` and `device` must outlive it.
  static core::Result<std::unique_ptr<DataPlane>> create(gpu::Device& device, const TrainingPlan& plan,
                                                         Options options);
  ~DataPlane();
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  const RankProgram& program() const { return in_.tensors.program; }
  /// Like RankProgram::follow_order(), for what program() returns.
  void follow_order() { in_.tensors.program.follow_order(); }
  const RankTensors& tensors() const { return in_.tensors; }
  TrainerMarks& marks() { return marks_; }
  StepVerdict& verdict() { return verdict_; }
  const StepVerdict& verdict() const { return verdict_; }
  GradientSums& sums() { return sums_; }
  ShardUpdates& updates() { return updates_; }
  Launches& launches() { return launches_; }

  /// Before the first LaunchCollective, by all ranks alike, as Communication::set_groups().
  core::Result<void> set_groups(DataPlaneGroups groups) {
    return communication_.set_groups(std::move(groups));
  }
  /// From any thread.
  void perform(const StepWork& work);
  /// Every running and later collective ends in this error. From any thread.
  void abort(const core::Error& reason) { communication_.abort(reason); }

  /// Completes when the last enqueued update of the bucket is done. For the trainer's own tensors, what
  /// TrainerMarks::tensors_written() marked; null without "compute".
  gpu::EventView updated(core::BucketIndex bucket) const;
  BusyMoment moment() const;
  /// Watches for the end of the work enqueued on "compute" so far; null if there is no such stream.
  std::shared_ptr<const ComputeWatch> watch_compute();

  /// After abort(), once no role and no trainer uses it any more: waits for all streams, lets go of groups
  /// and of everything given but device and plan, and sends no message any more. What is left is memory, and
  /// ShardUpdates::end_step(). Errc::timeout after `deadline`.
  core::Result<StepVerdict::Rest> retire(std::chrono::nanoseconds deadline);
  /// Whether parameters and the optimizer's state are divided alike in both, and no memory of this one is
  /// registered with a group.
  bool rests_like(const DataPlane& other) const;
  /// Takes over this memory of a retired plane, and what else is divided alike, for its own. False, and
  /// nothing has happened, unless rests_like(). Before anything was asked of this plane.
  bool take_memory(DataPlane& retired);

 private:
  explicit DataPlane(StepContext context) : in_(std::move(context)) {}

  StepContext in_;
  TrainerMarks marks_{in_};
  Communication communication_{in_};
  StepVerdict verdict_{in_};
  GradientSums sums_{in_, marks_};
  ShardUpdates updates_{in_, marks_, sums_};
  Launches launches_{in_, communication_, sums_, verdict_};
};

}  // namespace troupe::actors
