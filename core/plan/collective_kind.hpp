#pragma once

#include <cstdint>
#include <string_view>

namespace troupe::core {

/// A plan's own entries never broadcast; a trainer's own operations may.
enum class CollectiveKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast };
std::string_view name_of(CollectiveKind kind) noexcept;

}  // namespace troupe::core
