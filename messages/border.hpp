#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "messages/envelope.hpp"

namespace troupe::messages {

/// The bytes of a message for another process. Not for a Completion: that ends this process.
std::vector<std::byte> outgoing(const Envelope& envelope);

struct Border {
  core::Rank peer{};  ///< the proven sender of the bytes
  core::Rank self{};
};

/// A message from a peer, if the peer may send it: MS-1 nothing enters a process that its sender may not
/// send. Besides what decode() refuses, Errc::mismatch for a message in another rank's name or about another
/// rank, to a role that does not accept it from the sender's role, or to another rank than `self`.
core::Result<Envelope> incoming(const Border& border, std::span<const std::byte> bytes);

}  // namespace troupe::messages
