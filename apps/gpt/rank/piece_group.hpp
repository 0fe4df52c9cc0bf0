#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/stage/in_step.hpp"

namespace troupe::apps::gpt {

/// The members that share each sequence, where every rank plays several neighbouring ones, one for each of
/// its pieces. What they exchange has the bits of a SessionTensorGroup of as many ranks in `ordered`
/// numerics. Operations are called from within the InStep::run() of a rank's own members.
class PieceGroup {
 public:
  /// For the members `first` to `first + own.members() - 1` of `size`. `own` must outlive the group.
  PieceGroup(std::size_t size, std::size_t first, InStep& own);

  /// Before the first operation, with the ranks that play the others, if there are any.
  void open(actors::TrainerGroup& ranks) { ranks_ = &ranks; }
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
  /// A number for each rank: the sum of those of its members.
  Counts by_rank(const Counts& counts) const;

  std::size_t size_, first_;
  InStep& own_;
  actors::TrainerGroup* ranks_ = nullptr;
  std::deque<Member> members_;
  std::vector<Brought> brought_;  ///< by own members
  std::vector<float> given_, taken_;
};

}  // namespace troupe::apps::gpt
