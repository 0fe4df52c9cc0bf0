#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/context.hpp"
#include "actors/session/device_copies.hpp"
#include "core/ids.hpp"
#include "core/plan/placement.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Parameters of which several ranks keep the same part.
struct SharedParameters {
  std::string name;               ///< the same on all of these ranks
  std::vector<core::Rank> ranks;  ///< at least two, ascending
  std::vector<core::ParameterIndex> parameters;
};

/// What this rank keeps of the model and other ranks keep too.
class Replicas {
 public:
  /// The context must outlive it.
  explicit Replicas(const SessionContext& context) : in_(context), copies_(context) {}

  /// Buckets of which other ranks keep the same part.
  std::vector<SharedParameters> buckets() const;
  /// The same, and the parameters that tensor-parallel ranks keep whole.
  std::vector<SharedParameters> all() const;
  /// A hash for the part of each parameter that this rank keeps; one pass over these bytes. What the trainer
  /// has enqueued is done before.
  core::Result<std::vector<std::uint64_t>> hashes();

 private:
  /// Ranks, this one among them, that keep the same part of what the domain's placements cut.
  std::vector<core::Rank> alike(std::size_t number, const core::Placements& placements) const;

  const SessionContext& in_;
  DeviceCopies copies_;
};

/// One hash for all of these parameters, in order.
std::uint64_t hash_of(const SharedParameters& shared, const std::vector<std::uint64_t>& hashes);

}  // namespace troupe::actors
