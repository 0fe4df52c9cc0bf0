#pragma once

#include <string>

#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Whether a directory has a part of what Accelerate's FSDP saves.
bool holds_accelerate(const std::string& directory);

/// What Accelerate's FSDP saves in one directory: pytorch_model_fsdp_0 and optimizer_0, each a directory of
/// torch.distributed.checkpoint (SHARDED_STATE_DICT), or pytorch_model_fsdp.bin and optimizer.bin
/// (FULL_STATE_DICT). The model is below "model", the optimizer below "optimizer"; without the latter there
/// is only a model. trainer_state.json says how many steps were done, where transformers' Trainer wrote one.
/// Other files of the directory (schedules, random generators) are named. Errc::invalid_argument where there
/// are several models.
core::Result<Source> open_accelerate(const std::string& directory, bool check, actors::Links links);

}  // namespace troupe::apps
