#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "actors/world/transport/authentication.hpp"

namespace troupe::actors {

/// Shows that whoever has the key has written a frame, and as which of its frames: BLAKE2b of the number, as
/// eight bytes, the lowest first, and the frame.
using Tag = std::array<std::byte, 16>;

Tag tag_of(const Proof& key, std::uint64_t number, std::span<const std::byte> frame);
/// Takes the same time wherever the first difference is.
bool is_tag(const Tag& tag, const Proof& key, std::uint64_t number, std::span<const std::byte> frame);

}  // namespace troupe::actors
