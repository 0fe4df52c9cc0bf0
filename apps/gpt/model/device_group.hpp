#pragma once

#include <cstddef>
#include <vector>

#include "core/dtype.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/elements.hpp"

namespace troupe::apps::gpt {

/// Like TensorGroup, for tensors in device memory. Operations are enqueued: they run after earlier work on
/// the device's compute stream, later work on it comes after them, and what they were given must stay alive
/// until the stream has completed them. Nothing waits on the host. Counts are elements, and may be 0.
class DeviceTensorGroup {
 public:
  using Counts = std::vector<std::size_t>;  ///< by member

  virtual ~DeviceTensorGroup() = default;
  virtual std::size_t size() const = 0;
  virtual std::size_t index() const = 0;

  /// In place, the same bits on every member. `scratch` has sum_scratch_bytes() of the values.
  virtual core::Result<void> sum(gpu::Elements values, gpu::BufferView scratch) = 0;
  virtual core::Result<void> max(gpu::Elements values) = 0;
  /// Member i gives counts[i] elements; all get all of them, in the order of members.
  virtual core::Result<void> gather(gpu::ConstElements own, gpu::Elements all, const Counts& counts) = 0;
  /// `all` has counts[i] elements for member i; each member gets the sums of its own. `scratch` has room for
  /// the greatest count of elements per member.
  virtual core::Result<void> scatter_sum(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                         gpu::BufferView scratch) = 0;
};

/// The groups that a rank computes with on a GPU; null: alone.
struct DeviceGroups {
  DeviceTensorGroup* layers = nullptr;     ///< members have parts of each layer
  DeviceTensorGroup* sequences = nullptr;  ///< members have parts of the same sequences
};

/// For a sum of this many elements between this many members.
std::size_t sum_scratch_bytes(std::size_t members, std::size_t elements, core::DType dtype);

}  // namespace troupe::apps::gpt
