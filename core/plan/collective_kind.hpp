#pragma once

#include <cstdint>
#include <string_view>

namespace troupe::core {

enum class CollectiveKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all };
std::string_view name_of(CollectiveKind kind) noexcept;

}  // namespace troupe::core
