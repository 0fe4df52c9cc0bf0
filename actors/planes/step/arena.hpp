#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/planes/step/training_plan.hpp"
#include "core/exact_sum.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

/// All device memory of one rank, taken once. Ranges are elements of their buffer, as layouts give them.
class Arena {
 public:
  /// What collectives carry is memory of theirs, when they are given.
  static core::Result<Arena> create(gpu::Device& device, const TrainingPlan& plan, core::Rank rank,
                                    gpu::CollectiveBackend* collectives = nullptr);

  /// Parameters in their own dtype; the same on all ranks between steps.
  gpu::BufferView parameters(core::BufferIndex buffer, core::ElementRange range) const;
  /// Gradients or partial sums of lanes, slot 0 at the bottom of the stack; reduced gradients end up in
  /// slot 0.
  gpu::BufferView gradients(core::BufferIndex buffer, int slot, core::ElementRange range) const;
  int slots() const { return slots_; }

  /// fp32 master values of this rank's shard of a bucket.
  gpu::BufferView master(core::BucketIndex bucket) const;
  /// What the optimizer keeps, by the index of its name in TrainingBuffer::states.
  gpu::BufferView optimizer_state(core::BucketIndex bucket, std::size_t index) const {
    return optimizer_[bucket.value].states[index].view();
  }
  /// Memory between the kernels of one optimizer step: of whole matrices, the most that one takes.
  gpu::BufferView optimizer_scratch() const { return optimizer_scratch_.view(); }
  bool has_own_master(core::BucketIndex bucket) const { return optimizer_[bucket.value].master.bytes() > 0; }

  /// Transient exchange buffers, a credit of two: launch k uses k % 2.
  static constexpr int kScratchCredits = 2;
  gpu::BufferView outgoing(int credit) const { return outgoing_[static_cast<std::size_t>(credit)].view(); }
  gpu::BufferView incoming(int credit) const { return incoming_[static_cast<std::size_t>(credit)].view(); }

  /// The core::ExactSquareSum of this rank's part of a bucket's reduced gradient.
  gpu::BufferView squares(core::BucketIndex bucket) const {
    return squares_.view().subview(bucket.value * sizeof(core::ExactSquareSum), sizeof(core::ExactSquareSum));
  }
  /// Of all buckets, one after the other.
  gpu::BufferView squares() const { return squares_.view(); }
  /// The verdict's i64 words; see verdict.hpp.
  gpu::BufferView verdict() const { return verdict_.view(); }
  /// The same words in host memory: what this rank contributes, and what all together said.
  gpu::BufferView own_verdict() const { return own_verdict_.view(); }
  gpu::BufferView common_verdict() const { return common_verdict_.view(); }

  /// All that collectives read and write in a step, but for the verdict's few words.
  std::span<const gpu::BufferView> carried() const { return carried_; }

  std::size_t bytes() const { return bytes_; }

 private:
  struct OptimizerState {
    gpu::Buffer master;
    std::vector<gpu::Buffer> states;
    gpu::BufferView master_in_parameters;
  };

  core::Result<gpu::Buffer> take(gpu::Device& device, std::size_t bytes);
  core::Result<gpu::Buffer> take_carried(gpu::Device& device, std::size_t bytes);
  core::Result<void> take_optimizer(gpu::Device& device, const TrainingPlan& plan, core::Rank rank);
  core::Result<void> take_scratch(gpu::Device& device, const TrainingPlan& plan, core::Rank rank);

  const TrainingPlan* plan_ = nullptr;
  gpu::CollectiveBackend* collectives_ = nullptr;  ///< null: all is the device's
  std::vector<gpu::BufferView> carried_;
  int slots_ = 1;
  std::vector<gpu::Buffer> parameters_;              ///< per buffer
  std::vector<std::vector<gpu::Buffer>> gradients_;  ///< per slot and buffer
  std::vector<OptimizerState> optimizer_;            ///< per bucket
  std::array<gpu::Buffer, kScratchCredits> outgoing_;
  std::array<gpu::Buffer, kScratchCredits> incoming_;
  gpu::Buffer optimizer_scratch_;
  gpu::Buffer squares_;
  gpu::Buffer verdict_;
  gpu::Buffer own_verdict_;
  gpu::Buffer common_verdict_;
  std::size_t bytes_ = 0;
};

/// How many gradient slots the rank needs: one, or in `ordered` numerics the depth of its stack of partial
/// sums.
int gradient_slots(const TrainingPlan& plan, core::Rank rank);

/// True when what the rank sends in an exchange does not lie in its gradient buffer as it is sent.
bool exchange_is_packed(const TrainingPlan& plan, core::Rank rank);

}  // namespace troupe::actors
