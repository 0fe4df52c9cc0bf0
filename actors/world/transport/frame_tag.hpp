#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "actors/world/transport/authentication.hpp"

namespace troupe::actors {

/// Shows that a holder of the key wrote the frame, and as which in order: the BLAKE2b of the frame's number
/// (eight bytes, the lowest first) and of the frame.
using Tag = std::array<std::byte, 16>;

Tag tag_of(const Proof& key, std::uint64_t number, std::span<const std::byte> frame);
/// Takes the same time wherever the first difference is.
bool is_tag(const Tag& tag, const Proof& key, std::uint64_t number, std::span<const std::byte> frame);

}  // namespace troupe::actors
