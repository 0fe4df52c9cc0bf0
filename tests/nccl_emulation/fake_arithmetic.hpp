#pragma once

#include <cstddef>
#include <vector>

#include "gpu/collective/nccl/abi.hpp"

namespace troupe::gpu {

/// The reduction of `inputs`, one per rank, of `count` elements each.
std::vector<std::byte> reduce_in_ring(NcclDataType type, NcclReduction reduction,
                                      const std::vector<const std::byte*>& inputs, std::size_t count);
std::size_t size_of(NcclDataType type);

}  // namespace troupe::gpu
