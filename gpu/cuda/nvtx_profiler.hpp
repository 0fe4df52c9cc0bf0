#pragma once

#include <memory>

#include "core/profiler.hpp"

namespace troupe::gpu {

/// NVTX ranges, shown by tools like Nsight Systems: one domain per subsystem, "troupe.conductor". Null if no
/// tool is loaded into this process: then there is no cost.
std::unique_ptr<core::Profiler> open_nvtx_profiler();

}  // namespace troupe::gpu
