#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::gpu {

using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;
using LookUpVariable = std::function<std::optional<std::string>(const std::string&)>;

/// Variables that Troupe sets before the first NCCL call, unless the user set them:
///
/// - NCCL_LAUNCH_ORDER_IMPLICIT=1: kernels of several communicators of one device start in launch order, so
///   that members with the same launch order cannot wait for each other in a circle;
/// - NCCL_SET_THREAD_NAME=1: NCCL's threads have names in stack dumps.
EnvironmentVariables nccl_environment(const LookUpVariable& look_up);

/// A sentence for each variable set by the user that overrides what Troupe asks for, or removes what it
/// relies on.
std::vector<std::string> nccl_overrides(const LookUpVariable& look_up);

/// Sets nccl_environment() in this process; returns nccl_overrides().
std::vector<std::string> prepare_nccl_environment();

/// For tests without enough GPUs: what rank `rank` of `ranks` on ONE GPU sets before its first NCCL call.
/// Each rank must be a process of its own. NCCL refuses two ranks on one GPU of one host, so each rank claims
/// to be a separate host, and the tensors go through the loopback interface. Everything except NCCL_HOSTID is
/// the same on all ranks and must stay so. Slow (ranks take turns on the GPU, milliseconds each): for
/// results, order and failures, never for speed. `log_directory` gets NCCL's logs if it is not empty.
EnvironmentVariables several_ranks_on_one_gpu(int rank, const std::string& log_directory = "");

}  // namespace troupe::gpu
