#pragma once

#include "apps/troupe/launch/job.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Runs the job to its end and returns the launcher's exit code. Call from the main thread, with no other
/// thread about: it forks. Signals of the process are handled inside.
core::Result<int> run_job(Job& job);

}  // namespace troupe::apps
