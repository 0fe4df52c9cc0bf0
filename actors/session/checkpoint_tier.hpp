#pragma once

#include <cstdint>
#include <memory>

#include "actors/planes/checkpoint/plane.hpp"
#include "actors/session/context.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The checkpoints of one rank: their roles, and the plane that carries out the work of these roles.
class CheckpointTier {
 public:
  /// The world has a place for checkpoints. Errc::invalid_argument for impossible budgets. `context` must
  /// outlive it.
  static core::Result<std::unique_ptr<CheckpointTier>> create(const SessionContext& context);

  void spawn_roles();
  CheckpointPlane& plane() { return *plane_; }

 private:
  CheckpointTier(const SessionContext& context, std::unique_ptr<CheckpointPlane> plane)
      : in_(context), plane_(std::move(plane)) {}

  const SessionContext& in_;
  std::unique_ptr<CheckpointPlane> plane_;
};

}  // namespace troupe::actors
