#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "actors/world/environment.hpp"
#include "core/result.hpp"

namespace troupe::actors::slurm {

/// How many tasks this step has. One for a shell of `srun --pty` or `salloc` and for a batch script, whatever
/// SLURM_NTASKS says: those are the tasks that the job may start.
core::Result<std::int64_t> tasks_of_step(const Variables& variables);

/// How many of them this node has, as the step or the job lists them. Errc::invalid_argument names what
/// is missing or cannot be parsed.
core::Result<int> tasks_of_node(const Variables& variables, std::int64_t world);

/// The first host of a list such as "gpu-[003-005,009],x1": "gpu-003". Errc::invalid_argument for other text.
core::Result<std::string> first_host(std::string_view list);

/// Where rank 0 of this step runs: a name that the nodes know, or the loopback address if there is one node.
core::Result<std::string> host_of_first_task(const Variables& variables);

/// "slurm_<job>_<step>".
std::string name_of_job(const Variables& variables);

}  // namespace troupe::actors::slurm
