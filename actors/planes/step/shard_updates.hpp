#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "actors/planes/step/busy_time.hpp"
#include "actors/planes/step/gradient_sums.hpp"
#include "actors/planes/step/step_context.hpp"
#include "actors/planes/step/trainer_marks.hpp"
#include "actors/roles/work.hpp"

namespace troupe::actors {

/// Steps this rank's shards of parameters on "update", and keeps what the optimizer needs for it.
class ShardUpdates {
 public:
  /// All must outlive it.
  ShardUpdates(const StepContext& in, const TrainerMarks& marks, GradientSums& sums)
      : in_(in), marks_(marks), sums_(sums), buckets_(in.tensors.plan.buckets.size()) {}

  /// Takes the parameters' present values as the optimizer's master copy. Once, before the first step.
  void adopt_all();
  /// The same for a range of what this rank keeps of a bucket, as in RankTensors::state(). Does nothing
  /// without fp32 copies.
  void adopt(core::BucketIndex bucket, core::ElementRange part);
  /// The same for what this rank's optimizer steps of a parameter.
  void adopt(core::ParameterIndex parameter);

  /// Whether any parameters have values representable in microscaling blocks (ParameterSpec::gather_dtype).
  bool rounds_parameters() const;
  /// Rounds the present values of these parameters, after the optimizer's copy of the unrounded ones was
  /// taken. Before the first step. Ends in StateGathered to the trainer.
  void round_parameters();

  /// The optimizer of a loaded state has taken this many steps, of which single parameters missed some: by
  /// parameter, or none. Before the first step.
  void restore_steps(core::StepCount steps, std::vector<std::int64_t> missed);

  /// ParameterShards call it concurrently, for one bucket each.
  void step(const StepShard& work);
  /// After DataPlane::retire(): carries out what was decided, for the buckets whose optimizer has not stepped
  /// yet.
  core::Result<void> end_step(const messages::StepDecided& decided, std::chrono::nanoseconds deadline);
  /// How long any update was running, up to `now`.
  std::chrono::nanoseconds busy(std::chrono::nanoseconds now) const { return busy_.total(now); }

 private:
  struct Bucket {
    std::chrono::nanoseconds began{};  ///< accessed by notifications of "update" only
    std::atomic<std::int64_t> optimizer_steps{0};
    std::atomic<std::int64_t> stepped{-1};  ///< the last decided step that was carried out
  };

  void carry_out(const StepShard& work);
  void step_segment(const StepShard& work, const RankTensors::Segment& segment, std::int64_t step);

  const StepContext& in_;
  const TrainerMarks& marks_;
  GradientSums& sums_;
  core::List<core::BucketIndex, Bucket> buckets_;
  /// By parameter, of the optimizer's steps; empty: none. Not changed any more when there is a step.
  std::vector<std::int64_t> steps_missed_;
  /// Guards the order of what uses the arena's optimizer scratch: a step is one task of a host's stream, but
  /// several kernels of a GPU's, and those of two buckets must not come between each other.
  std::mutex scratch_mutex_;
  BusyTime busy_;
};

}  // namespace troupe::actors
