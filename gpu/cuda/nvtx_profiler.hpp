#pragma once

#include <memory>

#include "core/profiler.hpp"

namespace troupe::gpu {

/// Ranges of NVTX, which Nsight Systems and its like show: a domain per subsystem, "troupe.conductor". Null
/// when no tool has loaded itself into this process: nothing is spent then.
std::unique_ptr<core::Profiler> open_nvtx_profiler();

}  // namespace troupe::gpu
