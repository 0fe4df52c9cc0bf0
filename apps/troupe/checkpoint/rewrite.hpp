#pragma once

#include <cstdint>
#include <string>

#include "apps/files/source.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

/// How many ranks a checkpoint is written as, and what each of them holds.
struct Sharding {
  int ranks = 1;
  /// ddp: every rank holds all, and they share the writing tensor by tensor. zero1: the tensors of each kind
  /// of state follow one another, by name, and every rank has an equal part, so that a parameter and its
  /// moments are cut at the same places.
  std::string strategy = "zero1";
};

inline constexpr int kMaxRanks = 65536;

struct Written {
  std::string path;  ///< of the checkpoint
  std::uint64_t bytes = 0;
  std::size_t files = 0;
  double seconds = 0;
};

/// Writes the source's tensors, values and objects as a checkpoint of Troupe into a directory of checkpoints,
/// which is made when it is not there; it may also name the checkpoint in it, as in out/step_00000200. Memory
/// for one chunk is enough. What was not finished is removed, also what a process left that is gone.
/// Errc::already_exists when the step is there.
core::Result<Written> write_checkpoint(const Source& source, const Sharding& sharding,
                                       const core::Value& topology, const std::string& directory);

}  // namespace troupe::apps
