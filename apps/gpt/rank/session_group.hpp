#pragma once

#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/model/group.hpp"
#include "core/options/options.hpp"

namespace troupe::apps::gpt {

/// A session's group of ranks, for tensors in host memory. In `ordered` numerics every sum adds the members'
/// values in a tree (add_in_tree()): an exchange of parts, a sum here, and a gather if all want the result;
/// the bytes sent are those of a ring. In `fast` numerics sums are the back-end's own.
class SessionTensorGroup final : public TensorGroup<float> {
 public:
  SessionTensorGroup(std::size_t size, std::size_t index, core::Numerics numerics)
      : size_(size), index_(index), is_ordered_(numerics == core::Numerics::ordered) {}

  /// Before the first operation. The group is this rank's, with the same number of members and this index
  /// among them.
  void open(actors::TrainerGroup& group);

  std::size_t size() const override { return size_; }
  std::size_t index() const override { return index_; }
  core::Result<void> sum(std::span<float> values) override;
  core::Result<void> max(std::span<float> values) override;
  core::Result<void> gather(std::span<const float> own, std::span<float> all, const Counts& counts) override;
  core::Result<void> scatter_sum(std::span<const float> all, std::span<float> own,
                                 const Counts& counts) override;

 private:
  /// scatter_sum() in the tree of members.
  core::Result<void> exchange_and_add(std::span<const float> all, std::span<float> own, const Counts& counts);

  std::size_t size_;
  std::size_t index_;
  bool is_ordered_;
  actors::TrainerGroup* group_ = nullptr;
  std::vector<float> taken_;  // what the members sent for this rank's part
  std::vector<float> own_;    // used by sum()
};

}  // namespace troupe::apps::gpt
