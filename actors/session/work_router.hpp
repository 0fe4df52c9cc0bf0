#pragma once

#include "actors/planes/checkpoint/plane.hpp"
#include "actors/planes/experts/plane.hpp"
#include "actors/planes/step/data_plane.hpp"
#include "actors/roles/work.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/local_tier.hpp"
#include "actors/session/replica_check.hpp"
#include "messages/address.hpp"

namespace troupe::actors {

/// Passes the work that machines ask for to the plane that owns it. Work that no plane owns is a bug in a
/// machine and ends the process.
class WorkRouter {
 public:
  /// All of them must outlive the router; null: this rank has none.
  struct Planes {
    DataPlane& step;
    CheckpointPlane* checkpoint = nullptr;
    LocalTier* local = nullptr;
    HostExchange* hosts = nullptr;
    ExpertPlane* experts = nullptr;
    ReplicaCheck* replicas = nullptr;
  };

  explicit WorkRouter(Planes planes) : planes_(planes) {}

  /// From any thread.
  void perform(const messages::Address& from, const Work& work) const;

 private:
  void perform(messages::Role from, const CheckpointWork& work) const;
  void abort(const core::Error& reason) const;

  Planes planes_;
};

}  // namespace troupe::actors
