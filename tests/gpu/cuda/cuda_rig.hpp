#pragma once

#include <memory>

#include "core/result.hpp"
#include "tests/gpu/rig.hpp"

namespace troupe::gpu {

/// The first GPU. Errc::unavailable where there is none.
core::Result<std::unique_ptr<Rig>> make_cuda_rig();

}  // namespace troupe::gpu
