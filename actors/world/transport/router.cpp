#include "actors/world/transport/router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {
namespace {

using core::Errc;

/// What a transport message's payload is. On the wire: only append.
enum class PacketKind : std::uint8_t {
  message = 1,  ///< from, to, bytes
  joined = 2,   ///< rank, 0
  left = 3,     ///< rank, 0
  lost = 4,     ///< rank, code, sentence
};

constexpr std::size_t kPacketHeaderBytes = 9;

std::vector<std::byte> make_packet(PacketKind kind, core::Rank rank, std::int32_t detail,
                                   std::span<const std::byte> bytes) {
  std::vector<std::byte> packet;
  packet.reserve(kPacketHeaderBytes + bytes.size());
  ByteWriter(packet).number(static_cast<std::uint8_t>(kind)).number(rank.value).number(detail).bytes(bytes);
  return packet;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

core::Errc code_in_packet(std::int32_t number) {
  bool known = number >= 0 && number <= static_cast<std::int32_t>(Errc::internal);
  return known ? static_cast<Errc>(number) : Errc::internal;
}

core::Error departed(core::Rank rank) {
  return {Errc::peer_lost, fmt::format("rank {} has left the job in good order", rank.value)};
}

}  // namespace

Router::Router(RouterOptions options) : options_(std::move(options)) {
  CHECK(is_valid(options_.self), "a rank is below the size of its world");
}

Router::Connection* Router::find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

const Router::Connection* Router::find(ConnectionId id) const {
  return const_cast<Router*>(this)->find(id);
}

void Router::touch(ConnectionId id, Connection& connection) {
  if (!std::exchange(connection.is_touched, true)) touched_.push_back(id);
  const auto deadline = connection.machine.deadline();
  if (deadline == connection.deadline) return;
  deadlines_.erase({connection.deadline, id});
  connection.deadline = deadline;
  deadlines_.insert({deadline, id});
}

std::vector<Router::ConnectionId> Router::take_touched() {
  auto touched = std::exchange(touched_, {});
  std::erase_if(touched, [&](ConnectionId id) { return find(id) == nullptr; });
  std::ranges::sort(touched);
  for (const ConnectionId id : touched) find(id)->is_touched = false;
  return touched;
}

Router::ConnectionId Router::open(Time now) {
  TransportOptions options{
      .side = is_hub() ? TransportOptions::Side::acceptor : TransportOptions::Side::initiator,
      .job = options_.job,
      .self = options_.self,
      .peer = kHub,
      .token = options_.token,
      .nonce = options_.nonce(),
      .limits = options_.limits,
      .admit = [this](core::Rank rank) { return admit(rank); }};
  TransportMachine machine(std::move(options), now);
  const auto deadline = machine.deadline();
  deadlines_.insert({deadline, ++next_id_});
  touch(next_id_, connections_.emplace(next_id_, Connection{std::move(machine), deadline}).first->second);
  return next_id_;
}

core::Result<void> Router::admit(core::Rank rank) {
  if (!is_valid(rank) || rank == kHub) {
    return core::fail(Errc::mismatch, "the job has ranks 1 to {} besides this one, found rank {}; check RANK",
                      options_.world.value - 1, rank.value);
  }
  if (peer(rank).connection) {
    return core::fail(Errc::already_exists, "rank {} is connected already; two processes have the same RANK",
                      rank.value);
  }
  if (leaving_) return core::fail(Errc::aborted, "the job is ending");
  return {};
}

void Router::receive(ConnectionId id, std::span<const std::byte> bytes, Time now) {
  if (Connection* connection = find(id)) connection->machine.receive(bytes, now);
  process(id, now);
}

void Router::disconnected(ConnectionId id, std::string_view why, Time now, Time absence) {
  if (Connection* connection = find(id)) connection->machine.disconnected(why, absence);
  process(id, now);
}

void Router::tick(Time now) {
  std::vector<ConnectionId> due;
  for (const auto& [deadline, id] : deadlines_) {
    if (deadline > now) break;
    due.push_back(id);
  }
  std::ranges::sort(due);
  for (const ConnectionId id : due) {
    find(id)->machine.tick(now);
    process(id, now);
  }
}

Router::Time Router::deadline() const {
  return deadlines_.empty() ? Time::max() : deadlines_.begin()->first;
}

void Router::process(ConnectionId id, Time now) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  for (TransportEvent& event : connection->machine.take_events()) {
    std::visit([&](const auto& what) { on(what, id, now); }, event);
  }
  touch(id, *connection);
}

void Router::on(const Joined& joined, ConnectionId id, Time now) {
  TransportMachine& machine = find(id)->machine;
  find(id)->rank = joined.peer;
  Peer& who = peer(joined.peer);
  bool returns = std::exchange(who.gone, std::nullopt).has_value();
  who.connection = id;
  who.early_bytes = 0;
  events_.emplace_back(RankJoined{joined.peer});
  for (const auto& packet : std::exchange(who.early, {})) {
    if (auto sent = machine.send(packet, now); !sent) machine.fail(sent.error());
  }
  if (is_hub() && returns) announce(joined.peer, make_packet(PacketKind::joined, joined.peer, 0, {}), now);
  if (leaving_) machine.leave(now);
}

void Router::on(const Received& received, ConnectionId id, Time now) {
  Connection* connection = find(id);
  if (!connection->rank) return;
  ByteReader reader(received.message);
  auto kind = static_cast<PacketKind>(reader.number<std::uint8_t>());
  core::Rank from{reader.number<std::int32_t>()};
  core::Rank to{reader.number<std::int32_t>()};

  bool is_message = reader.ok() && kind == PacketKind::message && is_valid(to);
  bool is_notice = reader.ok() && kind >= PacketKind::joined && kind <= PacketKind::lost;
  if (is_message && (is_hub() ? from == connection->rank : is_valid(from) && to == options_.self)) {
    pass_on(from, to, received.message, now);
  } else if (is_notice && !is_hub() && is_valid(from) && from != kHub) {
    on_notice(received.message);
  } else {
    connection->machine.fail(
        {Errc::corrupt, fmt::format("rank {} sent a packet of kind {} from rank {} to {}, which cannot be",
                                    connection->rank->value, static_cast<int>(kind), from.value, to.value)});
    process(id, now);
  }
}

void Router::on_notice(std::span<const std::byte> packet) {
  ByteReader reader(packet);
  auto kind = static_cast<PacketKind>(reader.number<std::uint8_t>());
  core::Rank rank{reader.number<std::int32_t>()};
  auto code = reader.number<std::int32_t>();
  auto sentence = reader.rest();
  if (kind == PacketKind::joined) {
    peer(rank).gone.reset();
    events_.emplace_back(RankJoined{rank});
  } else if (kind == PacketKind::left) {
    peer(rank).gone = departed(rank);
    events_.emplace_back(RankLeft{rank});
  } else {
    core::Error why{code_in_packet(code), {reinterpret_cast<const char*>(sentence.data()), sentence.size()}};
    peer(rank).gone = why;
    events_.emplace_back(RankLost{rank, std::move(why)});
  }
}

void Router::pass_on(core::Rank from, core::Rank to, std::span<const std::byte> packet, Time now) {
  if (to == options_.self) {
    auto message = packet.subspan(kPacketHeaderBytes);
    events_.emplace_back(MessageArrived{from, {message.begin(), message.end()}});
    return;
  }
  // The sender to a rank that is gone has been told so, or will be before it gets anything else.
  if (peer(to).gone) return;
  auto sent = post(to, packet, now);
  if (sent) return;
  // NW-1: what cannot be queued must not vanish silently, so the rank that does not read is lost.
  if (auto id = peer(to).connection) {
    find(*id)->machine.fail(sent.error());
    process(*id, now);
  } else {
    lose(to, sent.error(), now);
  }
}

void Router::on(const Left&, ConnectionId id, Time now) {
  if (auto rank = std::exchange(find(id)->rank, std::nullopt)) depart(*rank, now);
}

void Router::on(const Lost& lost, ConnectionId id, Time now) {
  auto rank = std::exchange(find(id)->rank, std::nullopt);
  // A failed handshake is a loss only for the side that tried to connect.
  if (!rank && !is_hub()) rank = kHub;
  if (!rank) return;
  core::Error why = lost.why;
  if (lost.unacknowledged > 0) {
    why.message += fmt::format("; up to {} messages to it may not have arrived", lost.unacknowledged);
  }
  lose(*rank, why, now);
}

void Router::depart(core::Rank rank, Time now) {
  peer(rank) = {.gone = departed(rank)};
  events_.emplace_back(RankLeft{rank});
  if (is_hub()) announce(rank, make_packet(PacketKind::left, rank, 0, {}), now);
}

void Router::lose(core::Rank rank, const core::Error& why, Time now) {
  peer(rank) = {.gone = why};
  events_.emplace_back(RankLost{rank, why});
  auto code = static_cast<std::int32_t>(why.code);
  if (is_hub()) announce(rank, make_packet(PacketKind::lost, rank, code, bytes_of(why.message)), now);
}

void Router::announce(core::Rank about, std::span<const std::byte> packet, Time now) {
  std::vector<core::Rank> connected;
  for (const auto& [rank, peer] : peers_) {
    if (rank != about && peer.connection) connected.push_back(rank);
  }
  for (const core::Rank rank : connected) {
    if (peer(rank).connection) pass_on(kHub, rank, packet, now);
  }
}

core::Result<void> Router::send(core::Rank to, std::span<const std::byte> message, Time now) {
  if (!is_valid(to)) {
    return core::fail(Errc::invalid_argument, "the job has ranks 0 to {}, found rank {}",
                      options_.world.value - 1, to.value);
  }
  if (message.size() > kMaxControlMessageBytes) {
    return core::fail(Errc::invalid_argument,
                      "a control message has at most {} bytes, found {}; tensors go by collectives",
                      kMaxControlMessageBytes, message.size());
  }
  if (leaving_) return core::fail(Errc::aborted, "rank {} has said farewell already", options_.self.value);
  if (to == options_.self) {
    events_.emplace_back(MessageArrived{to, {message.begin(), message.end()}});
    return {};
  }
  if (peer(to).gone) return tl::unexpected(*peer(to).gone);
  return post(to, make_packet(PacketKind::message, options_.self, to.value, message), now);
}

core::Result<void> Router::post(core::Rank to, std::span<const std::byte> packet, Time now) {
  core::Rank next = is_hub() ? to : kHub;
  Peer& hop = peer(next);
  if (hop.gone) return tl::unexpected(*hop.gone);
  if (hop.connection) {
    Connection& connection = *find(*hop.connection);
    auto sent = connection.machine.send(packet, now);
    touch(*hop.connection, connection);
    return sent;
  }
  if (hop.early_bytes + packet.size() > options_.limits.queued_bytes) {
    return core::fail(Errc::unavailable, "{} bytes wait for rank {}, which has not joined; at most {} may",
                      hop.early_bytes, next.value, options_.limits.queued_bytes);
  }
  hop.early.emplace_back(packet.begin(), packet.end());
  hop.early_bytes += packet.size();
  return {};
}

void Router::leave(Time now) {
  leaving_ = true;
  for (ConnectionId id : connections()) {
    Connection& connection = *find(id);
    if (connection.machine.is_joined()) connection.machine.leave(now);
    touch(id, connection);
  }
}

bool Router::is_quiet() const {
  return std::ranges::all_of(connections_, [](const auto& entry) {
    const auto& [id, connection] = entry;
    return connection.machine.is_over() ? connection.machine.output_bytes() == 0
                                        : !connection.machine.is_joined();
  });
}

std::vector<std::byte> Router::take_output(ConnectionId id, std::size_t limit) {
  Connection* connection = find(id);
  return connection == nullptr ? std::vector<std::byte>{} : connection->machine.take_output(limit);
}

bool Router::is_over(ConnectionId id) const {
  const Connection* connection = find(id);
  return connection == nullptr || connection->machine.is_over();
}

void Router::forget(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  deadlines_.erase({found->second.deadline, id});
  connections_.erase(found);
}

std::optional<Router::ConnectionId> Router::oldest_stranger() const {
  const auto found = std::ranges::find_if(connections_, [](const auto& each) {
    return !each.second.machine.is_joined() && !each.second.machine.is_over();
  });
  return found == connections_.end() ? std::nullopt : std::optional(found->first);
}

std::vector<Router::ConnectionId> Router::connections() const {
  std::vector<ConnectionId> ids;
  ids.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) ids.push_back(id);
  return ids;
}

}  // namespace troupe::actors
