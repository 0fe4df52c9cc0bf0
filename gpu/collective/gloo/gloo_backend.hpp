#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

struct GlooDevice;

struct GlooOptions {
  std::string host = "127.0.0.1";  ///< this rank's address, as other ranks reach it
  std::string interface;           ///< for example "eth0"; if given, `host` is ignored
};

/// Collectives over TCP through Gloo's connections, for ranks on several hosts without GPUs. Messages are
/// Gloo's; the algorithms and the reductions (reduce_in_order()) are Troupe's. After a peer's death every
/// member ends in Errc::peer_lost; a member that times out or aborts closes its connections, which its peers
/// see as peer_lost. Disagreement between members is not detected. Gloo uses one thread per back-end. Members
/// are connected by introduce(): strangers that reach their ports do no harm.
class GlooBackend final : public CollectiveBackend {
 public:
  /// Ignores SIGPIPE in this process, unless another choice was made for it: Gloo writes to sockets of dead
  /// peers. `rendezvous` must outlive the back-end.
  static core::Result<std::unique_ptr<GlooBackend>> open(Rendezvous& rendezvous, const GlooOptions& options);

  std::string_view name() const override { return "gloo"; }
  core::Result<std::unique_ptr<Group>> create_group(GroupOptions options) override;

 private:
  GlooBackend(Rendezvous& rendezvous, std::shared_ptr<GlooDevice> device)
      : rendezvous_(rendezvous), device_(std::move(device)) {}

  Rendezvous& rendezvous_;
  std::shared_ptr<GlooDevice> device_;  // shared with the groups' meshes
};

}  // namespace troupe::gpu
