#include "gpu/collective/group.hpp"

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::gpu {

OperationKind kind_of(core::CollectiveKind kind) noexcept {
  switch (kind) {
    case core::CollectiveKind::all_reduce:
      return OperationKind::all_reduce;
    case core::CollectiveKind::reduce_scatter:
      return OperationKind::reduce_scatter;
    case core::CollectiveKind::all_gather:
      return OperationKind::all_gather;
    case core::CollectiveKind::all_to_all:
      return OperationKind::all_to_all;
    case core::CollectiveKind::broadcast:
      return OperationKind::broadcast;
  }
  CHECK(false, "every kind of collective is handled");
}

std::string_view name_of(OperationKind kind) noexcept {
  static constexpr auto kNames = core::enum_names<OperationKind>(
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "receive", "barrier");
  return kNames[kind];
}

std::string_view name_of(ReduceOp reduce) noexcept {
  static constexpr auto kNames =
      core::enum_names<ReduceOp>("sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor");
  return kNames[reduce];
}

bool is_of_bits(ReduceOp reduce) noexcept {
  return reduce == ReduceOp::bit_and || reduce == ReduceOp::bit_or || reduce == ReduceOp::bit_xor;
}

}  // namespace troupe::gpu
