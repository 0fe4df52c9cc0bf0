#pragma once

#include <chrono>
#include <mutex>
#include <vector>

#include "actors/planes/step/step_context.hpp"
#include "actors/planes/step/trainer_marks.hpp"
#include "actors/roles/work.hpp"

namespace troupe::actors {

/// A rank's sums of gradients: lanes join them on "accumulate"; what is reduced is measured, and is zeros
/// again before the next step adds to it.
class GradientSums {
 public:
  /// Both must outlive it.
  GradientSums(const StepContext& in, const TrainerMarks& marks);

  void prepare(const PrepareBucket& work);

  /// Rounds the rank's own sums of this range as they are sent.
  void round(core::BucketIndex bucket, core::ElementRange range, gpu::StreamView stream) const;
  /// Ranks that hold the same sums measure one part each, so that everything counts once.
  void measure(core::BucketIndex bucket, gpu::StreamView stream) const;
  /// The next lane adds to zeros.
  void clear(const PlannedLaunch& launch, gpu::StreamView stream) const;

  /// Zeroes all gradients that the trainer may have added to, on "compute" if it exists; otherwise they are
  /// zero when this returns, or Errc::timeout after `deadline`. Before the first step.
  core::Result<void> clear_all(std::chrono::nanoseconds deadline) const;
  /// Zeroes those of the bucket after the optimizer's step, on "update".
  void clear_after(const StepShard& work);
  /// Whether the optimizer leaves the gradients that it reads as zeros, while they are in the cache.
  bool are_cleared_by_update(core::BucketIndex bucket) const;

 private:
  void scale(core::BucketIndex bucket) const;
  void round_lane(const PrepareBucket& work) const;
  void sum_lanes(const PrepareBucket& work) const;
  void add_slots(core::BucketIndex bucket, const std::vector<core::TreeStep>& steps) const;
  std::vector<core::ElementRange> counted_in_norms(core::BucketIndex bucket) const;

  const StepContext& in_;
  const TrainerMarks& marks_;
  core::List<core::BucketIndex, std::vector<core::ElementRange>> measured_;  ///< what this rank counts
  std::mutex mutex_;                                                         // guards refused_
  core::Step refused_{-1};  ///< the last step after which all gradients were cleared
};

}  // namespace troupe::actors
