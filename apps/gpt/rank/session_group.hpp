#pragma once

#include <cstddef>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/model/device_group.hpp"
#include "apps/gpt/model/group.hpp"
#include "core/options/options.hpp"
#include "core/plan/lanes.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

/// A session's group of ranks, for tensors in the memory that the session computes in. In `ordered` numerics
/// a sum is an exchange of parts, a sum in f32 here, which is rounded once, and a gather if all want the
/// result; the bytes sent are those of a ring. On the host it adds the members' values in a tree, as
/// add_in_tree() does, on a device in their order. In `fast` numerics sums are the back-end's own.
class SessionDeviceGroup final : public DeviceTensorGroup {
 public:
  SessionDeviceGroup(std::size_t size, std::size_t index, core::Numerics numerics)
      : size_(size), index_(index), is_ordered_(numerics == core::Numerics::ordered) {}

  /// Before the first operation. The group is this rank's, with the same number of members and this index
  /// among them; `compute` is the stream that the session computes on, null on the host. Both must outlive
  /// the operations.
  void open(actors::TrainerGroup& group, gpu::StreamView compute);

  std::size_t size() const override { return size_; }
  std::size_t index() const override { return index_; }
  core::Result<void> sum(gpu::Elements values, gpu::BufferView scratch) override;
  core::Result<void> max(gpu::Elements values) override;
  core::Result<void> gather(gpu::ConstElements own, gpu::Elements all, const Counts& counts) override;
  core::Result<void> scatter_sum(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                 gpu::BufferView scratch) override;

 private:
  /// scatter_sum() in `steps_`. `own` may be this member's part of `all`.
  core::Result<void> exchange_and_add(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                      gpu::BufferView scratch);

  std::size_t size_;
  std::size_t index_;
  bool is_ordered_;
  std::vector<core::TreeStep> steps_;  ///< adds all members' values to the first's
  actors::TrainerGroup* group_ = nullptr;
  gpu::StreamView compute_ = nullptr;
};

/// The same group for a model that computes on the host.
class SessionTensorGroup final : public TensorGroup<float> {
 public:
  explicit SessionTensorGroup(SessionDeviceGroup& group) : group_(group) {}

  std::size_t size() const override { return group_.size(); }
  std::size_t index() const override { return group_.index(); }
  core::Result<void> sum(std::span<float> values) override;
  core::Result<void> max(std::span<float> values) override;
  core::Result<void> gather(std::span<const float> own, std::span<float> all, const Counts& counts) override;
  core::Result<void> scatter_sum(std::span<const float> all, std::span<float> own,
                                 const Counts& counts) override;

 private:
  gpu::BufferView scratch(std::size_t bytes);

  SessionDeviceGroup& group_;
  std::vector<std::byte> scratch_;
};

}  // namespace troupe::apps::gpt
