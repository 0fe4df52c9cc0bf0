#pragma once

#include <set>

#include "actors/planes/step/step_context.hpp"

namespace troupe::actors {

/// Which of a step's tensors the trainer may be using: marks on its stream "compute", if it has one, and what
/// waits for them. Its calls are made on the trainer's thread, before the message that says the same is
/// posted.
class TrainerMarks {
 public:
  /// `in` must outlive it.
  explicit TrainerMarks(const StepContext& in);

  /// The stream on which the trainer computes; it exists from the first call on, which must come before the
  /// first step.
  core::Result<gpu::StreamView> compute_stream();
  /// Null if it does not exist.
  gpu::StreamView compute() const { return compute_.get(); }
  void drain() { compute_.reset(); }

  /// The trainer may read the bucket's parameters from now on: those of a unit on demand in this slot, for
  /// which -1 is none.
  void acquired(core::BucketIndex bucket, int slot);
  /// The work enqueued on "compute" so far completes the lane's gradient of the parameter, and of all others
  /// of its bucket that were marked.
  void computed(core::ParameterIndex parameter, core::Lane lane);
  /// The work enqueued on "compute" so far may read parameters: no update of this step or a later one writes
  /// them before that work is done.
  void read();
  /// The work enqueued on "compute" so far may read the slot's full parameters; the next unit comes after it.
  /// In the simulator and in debug builds they are NaN from then on.
  void released(int slot);
  /// The work enqueued on "compute" so far may write the trainer's own tensors, which are about to be saved.
  void tensors_written();
  /// Completes with that work; null without "compute".
  gpu::EventView tensors() const { return tensors_written_.get(); }

  /// What is enqueued on the stream from now on comes after computed() of the bucket.
  void wait_computed(core::BucketIndex bucket, gpu::StreamView stream) const;
  /// After read().
  void wait_read(gpu::StreamView stream) const;
  /// After everything on "compute" so far.
  void wait_all(gpu::StreamView stream) const;

 private:
  gpu::TaskOrder* order() const { return compute_ ? compute_->order() : in_.device.order(); }

  const StepContext& in_;
  /// What may no longer be read is overwritten, so that a trainer that still reads it is detected.
  bool poisons_ = false;
  gpu::Stream compute_;  ///< null for trainers that compute on the host's thread
  core::List<core::BucketIndex, gpu::Event> computed_;
  gpu::Event read_;
  gpu::Event tensors_written_;
  std::set<core::BucketIndex> acquired_;  ///< in this step, but for units on demand
};

}  // namespace troupe::actors
