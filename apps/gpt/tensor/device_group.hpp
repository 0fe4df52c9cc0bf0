#pragma once

#include <cstddef>
#include <vector>

#include "core/dtype.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/elements.hpp"

namespace troupe::apps::gpt {

/// As TensorGroup, of tensors in a device's memory. Operations are enqueued: they run after what the device's
/// compute stream has been given so far, what it is given from then on comes after them, and until it has
/// passed them all that they were given stays alive. Nothing waits on the host. Counts are elements, and may
/// be 0.
class DeviceTensorGroup {
 public:
  using Counts = std::vector<std::size_t>;  ///< by member

  virtual ~DeviceTensorGroup() = default;
  virtual std::size_t size() const = 0;
  virtual std::size_t index() const = 0;

  /// In place, the same bits at every member. `scratch` has sum_scratch_bytes() of the values.
  virtual core::Result<void> sum(gpu::Elements values, gpu::BufferView scratch) = 0;
  virtual core::Result<void> max(gpu::Elements values) = 0;
  /// Member i gives counts[i] elements; all get all, in the order of members.
  virtual core::Result<void> gather(gpu::ConstElements own, gpu::Elements all, const Counts& counts) = 0;
  /// Of `all`, which has counts[i] elements for member i, each member gets the sums of its own. `scratch` has
  /// room for as many elements of each member as the greatest count.
  virtual core::Result<void> scatter_sum(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                         gpu::BufferView scratch) = 0;
};

/// With whom a rank computes on a GPU; null: alone.
struct DeviceGroups {
  DeviceTensorGroup* layers = nullptr;     ///< members have parts of each layer
  DeviceTensorGroup* sequences = nullptr;  ///< members have parts of the same sequences
};

/// Of a sum of so many elements between so many members.
std::size_t sum_scratch_bytes(std::size_t members, std::size_t elements, core::DType dtype);

}  // namespace troupe::apps::gpt
