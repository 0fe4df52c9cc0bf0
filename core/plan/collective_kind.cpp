#include "core/plan/collective_kind.hpp"

#include "core/enum_names.hpp"

namespace troupe::core {
namespace {

constexpr auto kKindNames =
    enum_names<CollectiveKind>("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast");

}  // namespace

std::string_view name_of(CollectiveKind kind) noexcept {
  return kKindNames[kind];
}

}  // namespace troupe::core
