#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/model/device_group.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/stage/in_step.hpp"
#include "core/plan/lanes.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

/// The members that share each sequence, where every rank plays several neighbouring ones, one for each of
/// its pieces. What they exchange has the bits of a SessionTensorGroup of as many ranks in `ordered`
/// numerics. Operations are called from within the InStep::run() of a rank's own members.
class PieceGroup {
 public:
  /// For the members `first` to `first + own.members() - 1` of `size`. `own` must outlive the group.
  PieceGroup(std::size_t size, std::size_t first, InStep& own);

  /// Before the first operation, with the ranks that play the others; null: there are none.
  void open(actors::TrainerGroup* ranks) { ranks_ = ranks; }
  TensorGroup<float>& member(std::size_t own) { return members_[own]; }

 private:
  using Counts = TensorGroup<float>::Counts;

  class Member final : public TensorGroup<float> {
   public:
    Member(PieceGroup& group, std::size_t own) : group_(group), own_(own) {}

    std::size_t size() const override { return group_.size_; }
    std::size_t index() const override { return group_.first_ + own_; }
    core::Result<void> sum(std::span<float> values) override;
    core::Result<void> max(std::span<float> values) override;
    core::Result<void> gather(std::span<const float> own, std::span<float> all,
                              const Counts& counts) override;
    core::Result<void> scatter_sum(std::span<const float> all, std::span<float> own,
                                   const Counts& counts) override;

   private:
    PieceGroup& group_;
    std::size_t own_;
  };
  /// What a member brings to a meeting, and what it takes away.
  struct Brought {
    std::span<const float> gives;
    std::span<float> takes;
  };

  core::Result<void> meet(std::size_t own, Brought brought, const InStep::Work& together) {
    brought_[own] = brought;
    return own_.meet(together);
  }
  /// taken_ = what all members give, in their order.
  core::Result<void> gather(const Counts& counts);
  core::Result<void> scatter_sum(const Counts& counts);
  std::size_t size_, first_;
  InStep& own_;
  actors::TrainerGroup* ranks_ = nullptr;
  std::deque<Member> members_;
  std::vector<Brought> brought_;  ///< by own members
  std::vector<float> given_, taken_;
};

/// The same on the session's device, with the bits of a SessionDeviceGroup of as many ranks. What members
/// bring is all the memory it takes.
class DevicePieceGroup {
 public:
  DevicePieceGroup(std::size_t size, std::size_t first, InStep& own);

  /// Before the first operation, with the ranks that play the others, null if there are none, and the stream
  /// that the session computes on.
  void open(actors::TrainerGroup* ranks, gpu::StreamView compute) { ranks_ = ranks, compute_ = compute; }
  DeviceTensorGroup& member(std::size_t own) { return members_[own]; }

 private:
  using Counts = DeviceTensorGroup::Counts;

  class Member final : public DeviceTensorGroup {
   public:
    Member(DevicePieceGroup& group, std::size_t own) : group_(group), own_(own) {}

    std::size_t size() const override { return group_.size_; }
    std::size_t index() const override { return group_.first_ + own_; }
    core::Result<void> sum(gpu::Elements values, gpu::BufferView scratch) override;
    core::Result<void> max(gpu::Elements values) override;
    core::Result<void> gather(gpu::ConstElements own, gpu::Elements all, const Counts& counts) override;
    core::Result<void> scatter_sum(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                   gpu::BufferView scratch) override;

   private:
    DevicePieceGroup& group_;
    std::size_t own_;
  };
  struct Brought {
    gpu::ConstElements gives;
    gpu::Elements takes;
    gpu::BufferView scratch{};
  };

  core::Result<void> gather(const Counts& counts);
  core::Result<void> scatter_sum(const Counts& counts);

  std::size_t size_, first_;
  InStep& own_;
  std::vector<core::TreeStep> in_order_;  ///< adds all to the first
  actors::TrainerGroup* ranks_ = nullptr;
  gpu::StreamView compute_ = nullptr;
  std::deque<Member> members_;
  std::vector<Brought> brought_;  ///< by own members
};

}  // namespace troupe::apps::gpt
