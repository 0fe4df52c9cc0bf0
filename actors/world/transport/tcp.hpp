#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "actors/world/endpoint.hpp"
#include "actors/world/log.hpp"
#include "actors/world/network.hpp"
#include "actors/world/transport/router.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct TcpOptions {
  RouterOptions router;
  /// Where rank 0 listens and the others reach it: a number or a name. Anything but loopback must be
  /// requested.
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  ///< at rank 0, 0 lets the system choose
  /// Ranks of other hosts come to this name. At rank 0, a name that means the loopback interface there, as
  /// a host's own name often does, is then taken for all interfaces.
  bool spans_hosts = false;
  /// If set: tells the others the port that rank 0 has bound.
  std::function<core::Result<void>(std::uint16_t port)> announce;
  /// If set: says where rank 0 listens, instead of `address` and `port`. Asked again if nobody is there.
  std::function<core::Result<Endpoint>(std::chrono::nanoseconds patience)> find;
  std::function<void()> all_have_come;  ///< if set: called once at rank 0, from the network's thread
  /// For reaching rank 0, which may start later, and being welcomed.
  std::chrono::nanoseconds connect_deadline = std::chrono::seconds(30);
  std::chrono::nanoseconds close_deadline = std::chrono::seconds(2);
  Logger log;  ///< what is bound, who was refused; from the network's thread
};

/// The control network over TCP: one thread, "troupe-network", which runs the sockets and calls the handler.
class TcpNetwork final : public Network {
 public:
  /// Has no thread yet, so that what answers its messages can be created after it; what is sent waits for
  /// start().
  TcpNetwork(TcpOptions options, NetworkHandler handler);
  ~TcpNetwork() override;

  /// Once. At rank 0 returns when the port is bound; elsewhere when rank 0 has welcomed this rank. The
  /// handler may be called before this returns, and is not called after this failed. At rank 0,
  /// Errc::invalid_argument for a name that is not known and Errc::io for an address that cannot be bound;
  /// elsewhere, Errc::timeout if rank 0 is not reached, Errc::mismatch if it belongs to another job or build
  /// or has another token.
  core::Result<void> start();
  /// Creates and starts one.
  static core::Result<std::unique_ptr<TcpNetwork>> open(TcpOptions options, NetworkHandler handler);
  /// From any thread: where start() waits for rank 0, it ends in `why`.
  void give_up(core::Error why);

  core::Rank rank() const override;
  core::WorldSize world_size() const override;
  core::Result<void> send(core::Rank to, std::span<const std::byte> message) override;
  /// Must not be called from the handler.
  core::Result<void> close() override;

  /// The port that was bound (rank 0) or reached.
  std::uint16_t port() const;

 private:
  class Shell;
  std::unique_ptr<Shell> shell_;
};

}  // namespace troupe::actors
