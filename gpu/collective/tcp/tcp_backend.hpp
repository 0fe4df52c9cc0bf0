#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "posix/authentication.hpp"

namespace troupe::gpu {

class TcpHub;

struct TcpOptions {
  std::string host = "127.0.0.1";  ///< this rank's address, as other ranks reach it
  std::string interface;           ///< for example "eth0"; if given, `host` is ignored
  /// The job's key, the same on all ranks, or none: then members prove to each other only that they read what
  /// the rendezvous says.
  std::optional<posix::JobToken> key;
};

/// Collectives over TCP, for ranks on several hosts without GPUs, with a connection between every two
/// members. The bytes go from and to the operations' memory; a reduction (reduce_in_order()) runs beside the
/// transfer. The thread that waits for an operation moves its bytes. After a peer's death every member ends
/// in Errc::peer_lost; what ends one member otherwise is told to the others. What members post is compared
/// when they first hear of it from each other (Agreement): a member that needs nothing of another one may be
/// through with an operation before that, and ends in Errc::mismatch in its next. Members are connected by
/// introduce(), so that strangers who reach their ports, or read what they send, cannot take their places;
/// the bytes of operations are neither signed nor encrypted.
class TcpBackend final : public CollectiveBackend {
 public:
  /// `rendezvous` must outlive the back-end.
  static core::Result<std::unique_ptr<TcpBackend>> open(Rendezvous& rendezvous, const TcpOptions& options);

  std::string_view name() const override { return "tcp"; }
  core::Result<std::unique_ptr<Group>> create_group(GroupOptions options) override;

 private:
  TcpBackend(Rendezvous& rendezvous, std::shared_ptr<TcpHub> hub)
      : rendezvous_(rendezvous), hub_(std::move(hub)) {}

  Rendezvous& rendezvous_;
  std::shared_ptr<TcpHub> hub_;  // shared with the groups' meshes
};

}  // namespace troupe::gpu
