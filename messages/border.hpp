#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "messages/envelope.hpp"

namespace troupe::messages {

/// The bytes of a message for another process. A Completion is none: it ends this process.
std::vector<std::byte> outgoing(const Envelope& envelope);

struct Border {
  core::Rank peer{};  ///< who has proved to be the sender of the bytes
  core::Rank self{};
};

/// What a peer says, as far as it may say it: MS-1 nothing enters a process that its sender is not the one to
/// say. Besides what decode() refuses, Errc::mismatch for a message in another rank's name or about another
/// rank, to a role that does not hear it from the sender's, or to another rank than `self`.
core::Result<Envelope> incoming(const Border& border, std::span<const std::byte> bytes);

}  // namespace troupe::messages
