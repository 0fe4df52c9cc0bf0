#include "actors/world/transport/router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.hpp"

namespace troupe::actors {
namespace {

using core::Errc;

/// What the payload of a transport message is. On the wire: only append.
enum class PacketKind : std::uint8_t {
  message = 1,  ///< from, to, bytes
  joined = 2,   ///< rank, 0
  left = 3,     ///< rank, 0
  lost = 4,     ///< rank, code, sentence
};

std::vector<std::byte> make_packet(PacketKind kind, core::Rank rank, std::int32_t detail,
                                   std::span<const std::byte> bytes) {
  std::vector<std::byte> packet;
  packet.reserve(9 + bytes.size());
  ByteWriter(packet).number(static_cast<std::uint8_t>(kind)).number(rank.value).number(detail).bytes(bytes);
  return packet;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

core::Errc code_of(std::int32_t number) {
  bool known = number >= 0 && number <= static_cast<std::int32_t>(Errc::internal);
  return known ? static_cast<Errc>(number) : Errc::internal;
}

core::Error departed(core::Rank rank) {
  return {Errc::peer_lost, fmt::format("rank {} has left the job in good order", rank.value)};
}

}  // namespace

Router::Router(RouterOptions options)
    : options_(std::move(options)), peers_(static_cast<std::size_t>(options_.world.value)) {
  CHECK(is_valid(options_.self), "a rank is below the size of its world");
}

Router::Connection* Router::find(ConnectionId id) {
  auto found = std::ranges::find(connections_, id, &Connection::id);
  return found == connections_.end() ? nullptr : &*found;
}

const Router::Connection* Router::find(ConnectionId id) const {
  auto found = std::ranges::find(connections_, id, &Connection::id);
  return found == connections_.end() ? nullptr : &*found;
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
  connections_.push_back({++next_id_, TransportMachine(std::move(options), now)});
  return next_id_;
}

core::Result<void> Router::admit(core::Rank rank) {
  if (!is_valid(rank) || rank == kHub) {
    return core::fail(Errc::mismatch, "the job has ranks 1 to {} besides this one, found rank {}; check RANK",
                      options_.world.value - 1, rank.value);
  }
  if (peer(rank).connection) {
    return core::fail(Errc::already_exists,
                      "rank {} is connected already; two processes have the same RANK", rank.value);
  }
  if (leaving_) return core::fail(Errc::aborted, "the job is ending");
  return {};
}

void Router::receive(ConnectionId id, std::span<const std::byte> bytes, Time now) {
  if (Connection* connection = find(id)) connection->machine.receive(bytes, now);
  process(id, now);
}

void Router::disconnected(ConnectionId id, std::string_view why, Time now) {
  if (Connection* connection = find(id)) connection->machine.disconnected(why);
  process(id, now);
}

void Router::tick(Time now) {
  for (ConnectionId id : connections()) {
    find(id)->machine.tick(now);
    process(id, now);
  }
}

Router::Time Router::deadline() const {
  Time first = Time::max();
  for (const Connection& connection : connections_) first = std::min(first, connection.machine.deadline());
  return first;
}

void Router::process(ConnectionId id, Time now) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  for (TransportEvent& event : connection->machine.take_events()) {
    std::visit([&](const auto& what) { on(what, id, now); }, event);
  }
}

void Router::on(const Joined& joined, ConnectionId id, Time now) {
  find(id)->announced = true;
  Peer& who = peer(joined.peer);
  bool returns = std::exchange(who.gone, std::nullopt).has_value();
  who.connection = id;
  events_.emplace_back(RankJoined{joined.peer});
  who.early_bytes = 0;
  for (const auto& packet : std::exchange(who.early, {})) {
    if (auto sent = find(id)->machine.send(packet, now); !sent) find(id)->machine.fail(sent.error());
  }
  if (is_hub() && returns) announce(joined.peer, make_packet(PacketKind::joined, joined.peer, 0, {}), now);
  if (leaving_) find(id)->machine.leave(now);
}

void Router::on(const Received& received, ConnectionId id, Time now) {
  ByteReader reader(received.message);
  auto kind = static_cast<PacketKind>(reader.number<std::uint8_t>());
  core::Rank rank{reader.number<std::int32_t>()};
  auto detail = reader.number<std::int32_t>();
  auto rest = reader.rest();
  core::Rank sender = is_hub() ? core::Rank{-1} : kHub;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (is_hub() && peers_[i].connection == id) sender = core::Rank{static_cast<std::int32_t>(i)};
  }

  bool is_message = kind == PacketKind::message && is_valid(core::Rank{detail});
  bool is_notice = !is_hub() && kind >= PacketKind::joined && kind <= PacketKind::lost;
  bool is_honest = is_hub() ? rank == sender : is_valid(rank) && (!is_message || detail == options_.self.value);
  if (!reader.ok() || !is_honest || (!is_message && !is_notice)) {
    find(id)->machine.fail({Errc::corrupt, fmt::format("rank {} sent a packet of kind {} from {} to {}, which "
                                                       "can not be",
                                                       sender.value, static_cast<int>(kind), rank.value, detail)});
    process(id, now);
  } else if (is_message) {
    pass_on(rank, core::Rank{detail}, received.message, now);
  } else if (kind == PacketKind::joined) {
    peer(rank).gone.reset();
    events_.emplace_back(RankJoined{rank});
  } else if (kind == PacketKind::left) {
    peer(rank).gone = departed(rank);
    events_.emplace_back(RankLeft{rank});
  } else {
    std::string why(reinterpret_cast<const char*>(rest.data()), rest.size());
    peer(rank).gone = core::Error{code_of(detail), why};
    events_.emplace_back(RankLost{rank, {code_of(detail), std::move(why)}});
  }
}

void Router::pass_on(core::Rank from, core::Rank to, std::span<const std::byte> packet, Time now) {
  if (to == options_.self) {
    auto message = packet.subspan(9);
    events_.emplace_back(MessageArrived{from, {message.begin(), message.end()}});
    return;
  }
  // The sender of a message to one who is gone has been told so, or will be before it hears anything else.
  if (peer(to).gone) return;
  if (auto sent = post(to, packet, now); !sent && peer(to).connection) {
    // NW-1: what can not be queued must not vanish, so the one who does not read is lost.
    ConnectionId id = *peer(to).connection;
    find(id)->machine.fail(sent.error());
    process(id, now);
  }
}

void Router::on(const Left&, ConnectionId id, Time now) {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].connection != id) continue;
    core::Rank rank{static_cast<std::int32_t>(i)};
    peers_[i].connection.reset();
    peers_[i].gone = departed(rank);
    find(id)->announced = false;
    events_.emplace_back(RankLeft{rank});
    if (is_hub()) announce(rank, make_packet(PacketKind::left, rank, 0, {}), now);
  }
}

void Router::on(const Lost& lost, ConnectionId id, Time now) {
  if (!std::exchange(find(id)->announced, false)) {
    // A handshake that failed is the hub's loss only for the one who tried to reach it.
    if (!is_hub()) {
      peer(kHub).gone = lost.why;
      events_.emplace_back(RankLost{kHub, lost.why});
    }
    return;
  }
  core::Error why = lost.why;
  if (lost.unacknowledged > 0) {
    why.message += fmt::format("; {} messages to it may not have arrived", lost.unacknowledged);
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].connection != id) continue;
    core::Rank rank{static_cast<std::int32_t>(i)};
    peers_[i].connection.reset();
    peers_[i].gone = why;
    events_.emplace_back(RankLost{rank, why});
    auto detail = static_cast<std::int32_t>(why.code);
    if (is_hub()) announce(rank, make_packet(PacketKind::lost, rank, detail, bytes_of(why.message)), now);
  }
}

void Router::announce(core::Rank about, std::span<const std::byte> packet, Time now) {
  for (std::size_t i = 1; i < peers_.size(); ++i) {
    core::Rank rank{static_cast<std::int32_t>(i)};
    if (rank != about && peers_[i].connection) pass_on(kHub, rank, packet, now);
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
  if (hop.connection) return find(*hop.connection)->machine.send(packet, now);
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
    Connection* connection = find(id);
    if (connection->machine.is_joined()) connection->machine.leave(now);
  }
}

bool Router::is_quiet() const {
  return std::ranges::all_of(connections_, [](const Connection& connection) {
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
  std::erase_if(connections_, [id](const Connection& connection) { return connection.id == id; });
}

std::vector<Router::ConnectionId> Router::connections() const {
  std::vector<ConnectionId> ids;
  ids.reserve(connections_.size());
  for (const Connection& connection : connections_) ids.push_back(connection.id);
  return ids;
}

}  // namespace troupe::actors
