#pragma once

#include <memory>
#include <span>
#include <vector>

#include "actors/session/session.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/rank/session_device_group.hpp"
#include "apps/gpt/rank/session_group.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/gpt/stage/stage_memory.hpp"

namespace troupe::apps::gpt {

/// The part of each layer that a rank keeps, and the slices of it. The options have passed
/// check_tensor_options().
TensorShare share_of(const TrainerOptions& options, core::Rank rank);

/// A trainer rank's side of tensor parallelism: its share of the layers, all of them if it is alone, and the
/// session's group "tp".
class TensorRank {
 public:
  /// Errc::invalid_argument names what does not divide, Errc::unavailable what cannot be cut.
  static core::Result<std::unique_ptr<TensorRank>> create(const TrainerOptions& options, core::Rank rank,
                                                          gpu::DeviceKind device);

  const SharedTable& table() const { return table_; }
  bool is_shared() const { return table_.share().size > 1; }
  /// For models, which may use them after open(). Null if the rank is alone, or computes elsewhere.
  TensorGroup<float>* group() { return is_shared() && !is_on_gpu_ ? &group_ : nullptr; }
  DeviceTensorGroup* device_group() { return is_shared() && is_on_gpu_ ? &device_group_ : nullptr; }
  /// Where stages and models of this rank compute. On a GPU `compute` is the session's stream.
  StagePlace place(gpu::Device& device, gpu::StreamView compute) {
    return {device, compute, {group()}, {device_group()}};
  }

  /// With the session's group, if layers are shared.
  core::Result<void> open(actors::Session& session);

  /// All of a parameter, of which `part` is this rank's; by all ranks of the group together. Valid until the
  /// next call.
  core::Result<std::span<const float>> whole(std::size_t parameter, std::span<const float> part);
  /// The same for a part in the memory that a GPU computes in, in its dtype there.
  core::Result<std::span<const std::byte>> whole_on_host(std::size_t parameter, gpu::ConstElements part,
                                                         const StageMemory& memory);

 private:
  TensorRank(const TrainerOptions& options, const TensorShare& share, gpu::DeviceKind device);

  SharedTable table_;
  bool is_on_gpu_;
  SessionTensorGroup group_;
  SessionDeviceGroup device_group_;
  std::vector<float> gathered_, whole_;
  std::vector<std::byte> gathered_bytes_, whole_bytes_;
};

}  // namespace troupe::apps::gpt
