#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/step/device_memory.hpp"
#include "actors/planes/step/exposure.hpp"
#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/roles/work.hpp"
#include "actors/shell/tracer.hpp"
#include "core/exact_sum.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// The process groups a rank takes part in. Communicators of the same ranks on one stream may share a group.
struct DataPlaneGroups {
  std::vector<std::unique_ptr<gpu::Group>> owned;
  std::map<core::Communicator, gpu::Group*> of;
  std::vector<std::unique_ptr<gpu::Group>> trainers;  ///< of the trainer's own collectives
};

/// The parameters of a bucket as this rank keeps them between steps.
struct BucketDigest {
  core::ElementRange range;  ///< of the bucket's buffer
  std::uint64_t hash = 0;
};

/// What a rank gives to each rank of the job and takes from it, in rank order; counts are bytes.
struct LoadedBytes {
  gpu::ConstBufferView input;
  gpu::BufferView output;
  std::vector<std::size_t> input_counts;
  std::vector<std::size_t> output_counts;
  std::shared_ptr<const void> owner;  ///< of the memory; shared with the code that packs and unpacks it

  gpu::Operation operation(std::chrono::nanoseconds deadline) const;
};

/// How long the device was busy with each activity since the beginning; running ones count up to now.
struct DataPlaneTimes {
  std::chrono::nanoseconds communication{};
  std::chrono::nanoseconds optimizer{};
};

/// One rank's tensors and streams, and the work that machines ask for. It executes the rank's program
/// (core/program): every launch follows from its entry, and no strategy has code of its own. It decides
/// nothing and waits for nothing: everything is enqueued, and completions come back as messages. "accumulate"
/// joins lanes, "communication" carries collectives ("gather" those of parameters, if the program gives them
/// a stream of their own), "update" sums trees, measures and steps the optimizer.
///
/// DP-1: a gradient range is written by the trainer only before PrepareBucket of its last lane (of each lane,
/// if each round reduces gradients) and after the bucket's ShardStepped (after LaneMerged); by the device
/// only between them.
class DataPlane {
 public:
  struct Options {
    core::Rank rank{};
    core::Epoch epoch{};
    std::chrono::nanoseconds collective_deadline = std::chrono::seconds(60);
    Tracer* tracer = nullptr;  ///< may be null
    /// The back-end of the groups to come; what they carry is in memory of theirs. Null: all memory is the
    /// device's.
    gpu::CollectiveBackend* collectives = nullptr;
    std::function<void(messages::Envelope)> post;  ///< from any thread; must not block
    /// Called when the entry's collective has been posted; from any thread; must not block. May be empty.
    std::function<void(core::Step, core::PlanEntryIndex)> launched;
    /// What is executed instead of the plan's own program for this rank.
    std::optional<core::Program> program{};
  };

  /// Allocates everything that a step needs: nothing is allocated later, except on a GPU for `ordered` sums
  /// of more than 256 terms (CudaKernels::tree_sum). `plan` and `device` must outlive it.
  static core::Result<std::unique_ptr<DataPlane>> create(gpu::Device& device, const TrainingPlan& plan,
                                                         Options options);
  ~DataPlane();

  const RankProgram& program() const;
  /// Before the first LaunchCollective, by all ranks alike. The groups are told what they carry, which may
  /// wait for other ranks.
  core::Result<void> set_groups(DataPlaneGroups groups);
  /// Takes the parameters' present values as the optimizer's master copy. Once, before the first step.
  void adopt_parameters();
  /// The same for a range of what this rank keeps of a bucket, as in state(). Does nothing without fp32
  /// copies.
  void adopt(core::BucketIndex bucket, core::ElementRange part);
  /// The same for what this rank's optimizer steps of a parameter.
  void adopt(core::ParameterIndex parameter);

  /// Whether any parameters have values representable in microscaling blocks (ParameterSpec::gather_dtype).
  bool rounds_parameters() const;
  /// Rounds the present values of these parameters, after the optimizer's copy of the unrounded ones was
  /// taken. Before the first step. Ends in StateGathered to the trainer.
  void round_parameters();

  /// Brings what each rank has loaded of the parameters to all ranks that keep it. Before the first step, by
  /// all ranks alike. Ends in StateGathered to the trainer.
  void gather_parameters();

  /// Brings the full parameters of some buckets of one unit to this rank, between steps, by all ranks alike.
  /// Ends in StateGathered to the trainer. Returns the slot they are gathered into.
  int gather_unit(const std::vector<core::BucketIndex>& buckets);

  /// A round in which ranks exchange what they have read from a checkpoint. Before the first step, by all
  /// ranks alike. Ends in LoadedShared to the trainer.
  void exchange_loaded(LoadedBytes bytes);

  /// Zeroes all gradients that the trainer may have added to, on "compute" if it exists; otherwise they are
  /// zero when this returns, or Errc::timeout after `deadline`. Before the first step.
  core::Result<void> clear_gradients(std::chrono::nanoseconds deadline);
  /// Like RankProgram::follow_order(), for what program() returns.
  void follow_order();

  /// From any thread.
  void perform(const StepWork& work);
  /// Every running and later collective ends in this error. From any thread.
  void abort(const core::Error& reason);

  /// The stream on which the trainer computes; it exists from the first call on, which must come before the
  /// first step.
  core::Result<gpu::StreamView> compute_stream();
  /// Null if it does not exist.
  gpu::StreamView compute() const;
  /// The trainer may read the bucket's parameters from now on: those of a unit on demand in this slot, for
  /// which -1 is none.
  void mark_acquired(core::BucketIndex bucket, int slot);
  /// The work enqueued on "compute" so far completes the lane's gradient of the parameter, and of all others
  /// of its bucket that were marked. Called before the message that says so is posted.
  void mark_computed(core::ParameterIndex parameter, core::Lane lane);
  /// The work enqueued on "compute" so far may read parameters: no update of this step or a later one writes
  /// them before that work is done. Called before the message that backward has ended is posted.
  void mark_read();
  /// How this rank's tokens of the step went to experts, as the verdict's words behind verdict_words().
  /// Called before the message that backward has ended is posted.
  void set_expert_counts(std::vector<std::int64_t> counts);
  /// The sums of all ranks, once the step is decided.
  std::vector<std::int64_t> expert_counts() const;
  /// Watches for the end of the work enqueued on "compute" so far; null if there is no such stream.
  std::shared_ptr<const ComputeWatch> watch_compute();

  /// The work enqueued on "compute" so far may read the slot's full parameters; the next unit comes after it.
  /// Called before the message that asks for that unit is posted. In the simulator and in debug builds they
  /// are NaN from then on.
  void mark_released(int slot);

  /// The parameter's values; PS-1 says when they may be read. For a unit on demand, in the slot it was
  /// gathered into.
  gpu::BufferView parameter(core::ParameterIndex parameter, int slot = -1) const;
  /// Where a lane accumulates the parameter's gradient (it differs from lane to lane): the one of `source`,
  /// in the round in which this rank plays `lane`.
  gpu::BufferView gradient(core::ParameterIndex parameter, core::Lane lane, int source = 0) const;
  /// The part of the parameter that is kept here, and where it is.
  struct Resting {
    core::ElementRange range;  ///< of the parameter; may be empty
    gpu::BufferView memory;
  };
  Resting resting_parameter(core::ParameterIndex parameter) const;
  /// The same for the reduced gradient; only the part that the rank's optimizer steps is valid.
  Resting reduced_gradient(core::ParameterIndex parameter) const;
  /// What this rank keeps of a bucket: the range that the rank's optimizer steps, see StateKind. Empty for
  /// the trainer's own.
  gpu::BufferView state(StateKind kind, core::BucketIndex bucket) const;
  /// The work enqueued on "compute" so far may write the trainer's own tensors, which are about to be saved.
  void mark_tensors();
  /// Completes when the last enqueued update of the bucket is done. For the trainer's own tensors, what
  /// mark_tensors() marked; null without "compute".
  gpu::EventView updated(core::BucketIndex bucket) const;
  /// The optimizer of a loaded state has taken this many steps, of which single parameters missed some: by
  /// parameter, or none. Before the first step.
  void restore_optimizer_steps(core::StepCount steps, std::vector<std::int64_t> missed);
  /// How far the last step had come when its session ended. In rest.cpp.
  struct Rest {
    core::Step step{-1};              ///< whose verdict was launched last
    bool is_reduced = false;          ///< all of its gradients are reduced on this rank
    core::Step decided{-1};           ///< whose verdict arrived last: this one, or the one before
    std::vector<std::int64_t> words;  ///< of that verdict, common to all ranks
  };
  /// After abort(), once no role and no trainer uses it any more: waits for all streams, lets go of groups
  /// and of everything given but device and plan, and sends no message any more. What is left is memory, and
  /// end_step(). Errc::timeout after `deadline`.
  core::Result<Rest> retire(std::chrono::nanoseconds deadline);
  /// What the words of a verdict say.
  messages::Verdict verdict_of(std::span<const std::int64_t> words) const;
  /// After retire(): carries out what was decided, for the buckets whose optimizer has not stepped yet.
  core::Result<void> end_step(const messages::StepDecided& decided, std::chrono::nanoseconds deadline);
  /// Whether parameters and the optimizer's state are divided alike in both, and no memory of this one is
  /// registered with a group.
  bool rests_like(const DataPlane& other) const;
  /// Takes over this memory of a retired plane, and what else is divided alike, for its own. False, and
  /// nothing has happened, unless rests_like(). Before anything was asked of this plane.
  bool take_memory(DataPlane& retired);
  /// Digests the bucket's present parameters.
  BucketDigest bucket_digest(core::BucketIndex bucket) const;
  /// Device memory that this rank has taken.
  const DeviceMemory& memory() const;

  DataPlaneTimes times() const;
  BusyMoment moment() const;
  /// When the last LaunchCollective that reduces the bucket's gradients was performed, by the device's clock;
  /// 0: never.
  std::chrono::nanoseconds last_launch(core::BucketIndex bucket) const;
  /// Optimizer steps taken so far; a step that is not committed takes none.
  core::StepCount optimizer_steps() const;

 private:
  struct State;
  explicit DataPlane(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace troupe::actors
