#pragma once

#include <chrono>
#include <functional>

#include "gpu/collective/nccl/library.hpp"

namespace troupe::gpu {

/// Polls until the communicator is no longer in progress: every 50 us at first, every 5 ms in the end. A call
/// of a non-blocking communicator is complete only then, and nothing else may be called before. in_progress
/// if `give_up` came first, or `is_over` returned true.
NcclStatus poll_nccl(const NcclApi& api, NcclComm comm, std::chrono::steady_clock::time_point give_up,
                     const std::function<bool()>& is_over);

}  // namespace troupe::gpu
