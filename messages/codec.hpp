#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/result.hpp"
#include "messages/envelope.hpp"

namespace troupe::messages {

/// Grows when the members of a message change; a new tag alone needs no new version.
inline constexpr unsigned kProtocolVersion = 7;
/// The size limit of an encoded envelope. encode() does not check it, the network refuses to send more.
inline constexpr std::size_t kMaxEncodedBytes = std::size_t{1} << 20;

/// MessagePack: [version, tag, epoch, from, to, body]. A struct is encoded as the array of its members in
/// order of declaration, an id or an enumerator as its number.
std::vector<std::byte> encode(const WireEnvelope& envelope);

/// Errc::corrupt for bytes that are not an envelope (truncated, too long, a wrong type, a tag that is unknown
/// or a completion's, a number out of range), Errc::mismatch for another version. Needs memory of at most 64
/// times the given bytes.
core::Result<WireEnvelope> decode(std::span<const std::byte> bytes);

}  // namespace troupe::messages
