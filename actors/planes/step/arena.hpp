#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/planes/step/device_memory.hpp"
#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "core/exact_sum.hpp"
#include "core/list.hpp"
#include "core/program/memory.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

/// All device memory of one rank, allocated once: what core::memory_of() counts for its program. Ranges are
/// elements of the bucket's buffer.
class Arena {
 public:
  /// If `collectives` are given, what they carry is in memory of theirs. Everything given must outlive it.
  /// Errc::out_of_memory says what the rank needs, by kind.
  static core::Result<Arena> create(gpu::Device& device, const TrainingPlan& plan, const RankProgram& program,
                                    gpu::CollectiveBackend* collectives = nullptr);

  /// Parameters as they are kept, in their own dtype: the rank's part of them, or all.
  gpu::BufferView parameters(core::BucketIndex bucket, core::ElementRange range) const;
  /// Full parameters of a unit on demand, in a slot of the pool.
  gpu::BufferView gathered(core::BucketIndex bucket, int slot, core::ElementRange range) const;

  /// A slot of the pool, whoever uses it.
  gpu::BufferView slot(int slot) const { return parameter_pool_[slot].view(); }

  /// Gradients as they are kept between rounds, slot 0 at the bottom of the stack of partial sums; reduced
  /// gradients end up in slot 0.
  gpu::BufferView gradients(core::BucketIndex bucket, int slot, core::ElementRange range) const;
  int slots(core::BucketIndex bucket) const { return static_cast<int>(at(bucket).partials.size()); }
  /// Full gradients of a round, if each round reduces them: a slot of the pool, or the bucket's own memory
  /// for -1; in `ordered` numerics those of each source.
  gpu::BufferView full_gradients(core::BucketIndex bucket, int slot, core::ElementRange range,
                                 int source = 0) const;

  /// fp32 master values of this rank's shard of a bucket.
  gpu::BufferView master(core::BucketIndex bucket) const;
  /// The optimizer's states, by the index of their name in TrainingBuffer::states.
  gpu::BufferView optimizer_state(core::BucketIndex bucket, std::size_t index) const {
    return at(bucket).states[index];
  }
  /// Memory used between the kernels of one optimizer step: for whole matrices, the most that one of them
  /// takes.
  gpu::BufferView optimizer_scratch() const { return optimizer_scratch_.view(); }
  bool has_own_master(core::BucketIndex bucket) const { return at(bucket).master.bytes > 0; }

  /// Transient buffers of exchanges, with two credits: exchange k uses k % 2.
  static constexpr int kScratchCredits = 2;
  gpu::BufferView outgoing(std::size_t credit) const { return outgoing_[credit].view(); }
  gpu::BufferView incoming(std::size_t credit) const { return incoming_[credit].view(); }
  /// Partial sums that go from one axis to the next: all roots but the first, one after the other.
  gpu::BufferView carry(std::size_t credit) const { return carry_[credit].view(); }

  /// What a gather in microscaling blocks brings, one member's part after another. All gathers are on one
  /// stream, so only one uses it at a time.
  gpu::BufferView blocks() const { return blocks_.view(); }

  /// The core::ExactSquareSum of this rank's part of a bucket's reduced gradient.
  gpu::BufferView squares(core::BucketIndex bucket) const {
    return squares_.view().subview(bucket.value * sizeof(core::ExactSquareSum), sizeof(core::ExactSquareSum));
  }
  /// The square sums of all buckets, one after another.
  gpu::BufferView squares() const { return squares_.view(); }
  /// The verdict's i64 words; see verdict.hpp.
  gpu::BufferView verdict() const { return verdict_.view(); }
  /// The same words in host memory: this rank's contribution, and the common result.
  gpu::BufferView own_verdict() const { return own_verdict_.view(); }
  gpu::BufferView common_verdict() const { return common_verdict_.view(); }

  /// Whether what outlasts a step, parameters and the optimizer's state, is divided alike in both.
  bool rests_like(const Arena& other) const;
  /// Exchanges that with an arena that it rests_like(), and all other memory too if it is divided alike,
  /// which depends on the number of ranks.
  void swap_resting(Arena& other);

  /// All gradients that the trainer adds to.
  std::vector<gpu::BufferView> added_to() const;

  /// Everything that collectives read and write in a step, except for the verdict's few words.
  std::span<const gpu::BufferView> carried() const { return carried_; }

  const DeviceMemory& taken() const { return taken_; }

 private:
  /// Where a bucket's memory is.
  struct Place {
    core::ElementRange whole;
    core::ElementRange parameters;  ///< kept here
    core::ElementRange gradients;
    std::size_t slots = 1;           ///< of gradients as they are kept
    std::size_t full_slots = 1;      ///< of a round's full gradients
    std::size_t width = 0;           ///< bytes of a parameter's element
    std::size_t gradient_width = 0;  ///< and of a gradient's
    std::size_t pool_offset = 0;     ///< in a slot of the pool of parameters
    std::size_t gradient_pool_offset = 0;
    gpu::BufferView resting;
    core::List<int, gpu::BufferView> partials;  ///< by slot
    gpu::BufferView full;                       ///< gradients, where they are not in the pool
    gpu::BufferView master;                     ///< empty: in the parameters themselves
    gpu::BufferView master_in_parameters;
    std::vector<gpu::BufferView> states;
  };
  /// One allocation that is divided into regions.
  class Cutter;

  bool is_like(const Arena& other) const;
  const Place& at(core::BucketIndex bucket) const { return places_[bucket]; }
  core::Result<void> take_all(gpu::Device& device, const TrainingPlan& plan, const RankProgram& program);
  core::Result<gpu::Buffer> take(gpu::Device& device, std::size_t bytes);
  core::Result<gpu::Buffer> take_carried(gpu::Device& device, std::size_t bytes);
  void place(const TrainingPlan& plan, const RankProgram& program);
  core::Result<void> take_resting(gpu::Device& device, const TrainingPlan& plan, const RankProgram& program);
  core::Result<void> take_optimizer(gpu::Device& device, const TrainingPlan& plan,
                                    const RankProgram& program);
  core::Result<void> take_pools(gpu::Device& device, const RankProgram& program);

  gpu::CollectiveBackend* collectives_ = nullptr;  ///< null: all memory is the device's
  std::vector<gpu::BufferView> carried_;
  core::List<core::BucketIndex, Place> places_;  ///< per bucket
  gpu::Buffer parameters_;
  gpu::Buffer optimizer_;
  std::vector<gpu::Buffer> gradients_;
  core::List<int, gpu::Buffer> parameter_pool_;
  core::List<int, gpu::Buffer> gradient_pool_;
  std::array<gpu::Buffer, kScratchCredits> outgoing_;
  std::array<gpu::Buffer, kScratchCredits> incoming_;
  std::array<gpu::Buffer, kScratchCredits> carry_;
  gpu::Buffer blocks_;
  gpu::Buffer optimizer_scratch_;
  gpu::Buffer squares_;
  gpu::Buffer verdict_;
  gpu::Buffer own_verdict_;
  gpu::Buffer common_verdict_;
  DeviceMemory taken_;
  std::size_t DeviceMemory::*kind_ = &DeviceMemory::at_rest;  ///< the kind of memory being allocated
};

}  // namespace troupe::actors
