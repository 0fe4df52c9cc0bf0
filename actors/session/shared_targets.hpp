#pragma once

#include "actors/engine/job.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/shared_load.hpp"

namespace troupe::actors {

/// What all ranks of a job want of a checkpoint: parameters, and, each of its own, their optimizer's state;
/// with `optimizer` false only what follows from the weights. What the checkpoint lacks is left out.
core::SharedTargets shared_targets(const Job& job, const core::Manifest& manifest, bool optimizer);

}  // namespace troupe::actors
