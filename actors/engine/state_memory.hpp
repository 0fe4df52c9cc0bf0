#pragma once

#include <span>
#include <vector>

#include "actors/engine/data_plane.hpp"
#include "actors/engine/state.hpp"
#include "gpu/buffer.hpp"

namespace troupe::actors {

/// Where each piece of a rank's state lies, for as long as the data plane lives.
std::vector<gpu::BufferView> memory_of(const RankState& state, const DataPlane& data,
                                       std::span<const TrainerTensor> tensors);

}  // namespace troupe::actors
