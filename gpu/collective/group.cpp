#include "gpu/collective/group.hpp"

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
  switch (kind) {
    case OperationKind::all_reduce:
      return "all_reduce";
    case OperationKind::reduce_scatter:
      return "reduce_scatter";
    case OperationKind::all_gather:
      return "all_gather";
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::all_to_all:
      return "all_to_all";
    case OperationKind::send:
      return "send";
    case OperationKind::receive:
      return "receive";
    case OperationKind::barrier:
      return "barrier";
  }
  return "unknown";
}

std::string_view name_of(ReduceOp reduce) noexcept {
  switch (reduce) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
    case ReduceOp::bit_and:
      return "bit_and";
    case ReduceOp::bit_or:
      return "bit_or";
    case ReduceOp::bit_xor:
      return "bit_xor";
  }
  return "unknown";
}

bool is_of_bits(ReduceOp reduce) noexcept {
  return reduce == ReduceOp::bit_and || reduce == ReduceOp::bit_or || reduce == ReduceOp::bit_xor;
}

}  // namespace troupe::gpu
