#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/state.hpp"
#include "gpu/buffer.hpp"

namespace troupe::actors {

/// Where each piece of a rank's state is, for as long as the data plane lives.
std::vector<gpu::BufferView> memory_of(const RankState& state, const DataPlane& data,
                                       std::span<const TrainerTensor> tensors);

/// The same memory, for code that reads and writes host memory.
std::vector<std::span<std::byte>> spans_of(std::span<const gpu::BufferView> views);

}  // namespace troupe::actors
