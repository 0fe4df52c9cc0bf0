#pragma once

#include <cstddef>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/model/device_group.hpp"
#include "core/options/options.hpp"
#include "core/plan/lanes.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

/// Like SessionTensorGroup, on the session's device. In `ordered` numerics a sum adds the members' values in
/// their order, in f32, and rounds once.
class SessionDeviceGroup final : public DeviceTensorGroup {
 public:
  SessionDeviceGroup(std::size_t size, std::size_t index, core::Numerics numerics);

  /// Before the first operation. The group is this rank's, with the same number of members and this index
  /// among them; `compute` is the stream that the session computes on. Both must outlive the operations.
  void open(actors::TrainerGroup& group, gpu::StreamView compute);

  std::size_t size() const override { return size_; }
  std::size_t index() const override { return index_; }
  core::Result<void> sum(gpu::Elements values, gpu::BufferView scratch) override;
  core::Result<void> max(gpu::Elements values) override;
  core::Result<void> gather(gpu::ConstElements own, gpu::Elements all, const Counts& counts) override;
  core::Result<void> scatter_sum(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                 gpu::BufferView scratch) override;

 private:
  /// scatter_sum() in the order of members. `own` may be this member's part of `all`.
  core::Result<void> exchange_and_add(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                      gpu::BufferView scratch);

  std::size_t size_;
  std::size_t index_;
  bool is_ordered_;
  std::vector<core::TreeStep> in_order_;  ///< adds all to the first
  actors::TrainerGroup* group_ = nullptr;
  gpu::StreamView compute_ = nullptr;
};

}  // namespace troupe::apps::gpt
