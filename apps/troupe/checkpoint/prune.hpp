#pragma once

#include <string>

#include "actors/planes/checkpoint/directory.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct PruneArguments {
  std::string directory;
  core::Retention retention;
  bool dry_run = false;
  bool json = false;
};

/// Removes checkpoints, and what `troupe checkpoint prune` prints of it. Errc::not_found for a directory
/// without checkpoints.
core::Result<std::string> prune_report(const PruneArguments& arguments);

}  // namespace troupe::apps
