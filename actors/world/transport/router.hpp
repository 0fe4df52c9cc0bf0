#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/world/network.hpp"
#include "actors/world/transport/machine.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct RouterOptions {
  std::string job;
  core::Rank self{};
  core::WorldSize world{};
  JobToken token{};
  TransportLimits limits;
  std::function<Nonce()> nonce = random_nonce;
};

/// All connections of one rank, without their wires. Rank 0 is the hub of a star: the others have one
/// connection, to it, and it relays their messages to each other and tells them which ranks are lost. Pure
/// like TransportMachine; both implementations of Network are this plus wires.
class Router {
 public:
  using Time = TransportMachine::Time;
  using ConnectionId = std::uint32_t;

  static constexpr core::Rank kHub{0};

  explicit Router(RouterOptions options);

  /// A wire was made: at the hub a peer connected, elsewhere we reached the hub.
  ConnectionId open(Time now);
  void receive(ConnectionId id, std::span<const std::byte> bytes, Time now);
  void disconnected(ConnectionId id, std::string_view why, Time now, Time absence = {});
  void tick(Time now);
  Time deadline() const;

  core::Result<void> send(core::Rank to, std::span<const std::byte> message, Time now);
  void leave(Time now);
  /// Every connection has ended or never joined, and nothing is left to write.
  bool is_quiet() const;

  /// Connections that may have something to write, or have ended, since they were taken last: the others have
  /// nothing new. In order of opening.
  std::vector<ConnectionId> take_touched();
  /// At the hub: the connection that has been open longest of those whose peer has not proved itself.
  std::optional<ConnectionId> oldest_stranger() const;
  /// What the wire should write next; empty if there is nothing.
  std::vector<std::byte> take_output(ConnectionId id, std::size_t limit);
  /// The connection has ended: write what take_output() has, close the wire, then forget().
  bool is_over(ConnectionId id) const;
  void forget(ConnectionId id);
  /// Ids of connections, in order of opening.
  std::vector<ConnectionId> connections() const;

  std::vector<NetworkEvent> take_events() { return std::exchange(events_, {}); }

 private:
  struct Connection {
    TransportMachine machine;
    Time deadline;
    std::optional<core::Rank> rank = std::nullopt;  ///< joined, and not yet left or lost
    bool is_touched = false;
  };
  /// What this rank knows about another one.
  struct Peer {
    std::optional<core::Error> gone;
    std::optional<ConnectionId> connection;
    std::vector<std::vector<std::byte>> early;  ///< packets for a rank that has not joined yet
    std::size_t early_bytes = 0;
  };

  Connection* find(ConnectionId id);
  const Connection* find(ConnectionId id) const;
  /// After everything that changes a connection's machine.
  void touch(ConnectionId id, Connection& connection);
  Peer& peer(core::Rank rank) { return peers_[rank]; }
  bool is_hub() const { return options_.self == kHub; }
  bool is_valid(core::Rank rank) const { return rank.value >= 0 && rank.value < options_.world.value; }

  core::Result<void> admit(core::Rank rank);
  void process(ConnectionId id, Time now);
  void on(const Joined& joined, ConnectionId id, Time now);
  void on(const Received& received, ConnectionId id, Time now);
  void on_notice(std::span<const std::byte> packet);
  void on(const Left& left, ConnectionId id, Time now);
  void on(const Lost& lost, ConnectionId id, Time now);
  void pass_on(core::Rank from, core::Rank to, std::span<const std::byte> packet, Time now);
  void depart(core::Rank rank, Time now);
  void lose(core::Rank rank, const core::Error& why, Time now);
  void announce(core::Rank about, std::span<const std::byte> packet, Time now);
  core::Result<void> post(core::Rank to, std::span<const std::byte> packet, Time now);

  RouterOptions options_;
  std::map<core::Rank, Peer> peers_;  ///< of whom something is known
  std::map<ConnectionId, Connection> connections_;
  std::set<std::pair<Time, ConnectionId>> deadlines_;  ///< of all connections
  std::vector<ConnectionId> touched_;
  ConnectionId next_id_ = 0;
  bool leaving_ = false;
  std::vector<NetworkEvent> events_;
};

}  // namespace troupe::actors
