#include "core/plan/collective_kind.hpp"

#include <array>
#include <cstddef>

namespace troupe::core {
namespace {

constexpr std::array<std::string_view, 5> kKindNames{"all_reduce", "reduce_scatter", "all_gather",
                                                     "all_to_all", "broadcast"};

}  // namespace

std::string_view name_of(CollectiveKind kind) noexcept {
  return kKindNames[static_cast<std::size_t>(kind)];
}

}  // namespace troupe::core
