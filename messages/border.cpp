#include "messages/border.hpp"

#include <utility>
#include <variant>

#include "core/errors.hpp"
#include "messages/codec.hpp"
#include "messages/wire/kinds.hpp"

namespace troupe::messages {
namespace {

using core::Errc;

/// These roles are in rank 0's process.
bool is_of_the_job(Role role) {
  return role == Role::coordinator || role == Role::checkpoint_coordinator ||
         role == Role::replica_coordinator;
}

/// Whether the role can be in that rank, and is the one that the kind requires.
bool is_end(const Address& address, Role role) {
  return address.role == role && address.index == 0 && (!is_of_the_job(role) || address.rank.value == 0);
}

core::Result<void> check(const WireEnvelope& envelope, const Border& border) {
  const auto& kind = wire::kWireKinds[envelope.body.index()];
  if (envelope.from.rank != border.peer) {
    return core::fail(Errc::mismatch, "rank {} sent {} in the name of rank {}", border.peer.value, kind.name,
                      envelope.from.rank.value);
  }
  if (envelope.to.rank != border.self || !is_end(envelope.from, kind.from) || !is_end(envelope.to, kind.to)) {
    return core::fail(Errc::mismatch,
                      "rank {} sent {} from {} to {}, which only the {} sends, and only to the {}",
                      border.peer.value, kind.name, to_string(envelope.from), to_string(envelope.to),
                      name_of(kind.from), name_of(kind.to));
  }
  return std::visit(
      [&](const auto& body) -> core::Result<void> {
        if constexpr (requires { body.rank; }) {
          if (body.rank != border.peer) {
            return core::fail(Errc::mismatch, "rank {} sent {} about rank {}; a rank speaks for itself",
                              border.peer.value, kind.name, body.rank.value);
          }
        }
        return {};
      },
      envelope.body);
}

}  // namespace

std::vector<std::byte> outgoing(const Envelope& envelope) {
  WireEnvelope wire{envelope.from, envelope.to, envelope.epoch, {}};
  std::visit(
      [&](const auto& body) {
        using Kind = std::decay_t<decltype(body)>;
        if constexpr (kIsKindOf<Kind, WireMessage>) {
          wire.body = body;
        } else {
          CHECK(false, "a completion is sent only within its process");
        }
      },
      static_cast<const AnyMessage&>(envelope.body));
  return encode(wire);
}

core::Result<Envelope> incoming(const Border& border, std::span<const std::byte> bytes) {
  auto wire = decode(bytes);
  if (!wire) {
    return core::fail(wire.error().code, "a message of rank {} was refused: {}", border.peer.value,
                      wire.error().message);
  }
  TRY(check(*wire, border));
  Envelope envelope{wire->from, wire->to, wire->epoch, {}};
  std::visit([&](auto& body) { envelope.body = std::move(body); }, wire->body);
  return envelope;
}

}  // namespace troupe::messages
