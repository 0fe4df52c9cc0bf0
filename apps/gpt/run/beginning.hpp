#pragma once

#include <optional>
#include <string>

#include "actors/session/outcomes.hpp"
#include "actors/shell/rank_world.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Where a run begins.
struct Beginning {
  std::optional<actors::Restored> restored;  ///< empty: from scratch
  /// The run's own directories held it, so what was restored is an earlier part of the same run.
  bool is_own = false;
  std::string note{};  ///< about settings that have changed since it was saved; may be empty
};

/// Restores what RunOptions::resume asks for; after a restart, the newest of the run's own checkpoints, if
/// there is one. By all ranks alike, before the first step. Errc::already_exists if the run's directories
/// hold checkpoints or local copies of another course of training: a restart would go on from those, and
/// saves of steps that are there would be dropped. Errc::mismatch if the checkpoint has another model or,
/// without RunOptions::force_resume, belongs to another course of training.
core::Result<Beginning> begin_run(DistributedTrainer& trainer, actors::RankWorld& world,
                                  const RunOptions& options);

/// Whether a restart would end with this Error of begin_run() again, or go on from what it refused.
bool is_about_checkpoints(const core::Error& error);

}  // namespace troupe::apps::gpt
