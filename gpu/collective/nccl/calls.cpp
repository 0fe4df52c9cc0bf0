#include "gpu/collective/nccl/calls.hpp"

#include <algorithm>
#include <optional>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"

namespace troupe::gpu {
namespace {

using core::DType;
using Function = NcclCall::Function;

std::optional<NcclDataType> type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return NcclDataType::f64;
    case DType::f32:
      return NcclDataType::f32;
    case DType::f16:
      return NcclDataType::f16;
    case DType::bf16:
      return NcclDataType::bf16;
    case DType::i64:
      return NcclDataType::i64;
    case DType::i32:
      return NcclDataType::i32;
    case DType::i8:
      return NcclDataType::i8;
    case DType::u64:
      return NcclDataType::u64;
    case DType::u32:
      return NcclDataType::u32;
    case DType::u8:
    case DType::boolean:  // 0 and 1: min is "and", max is "or"
      return NcclDataType::u8;
    default:
      return std::nullopt;
  }
}

NcclReduction reduction_of(ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::sum:
      return NcclReduction::sum;
    case ReduceOp::average:
      return NcclReduction::average;
    case ReduceOp::min:
      return NcclReduction::min;
    case ReduceOp::max:
      return NcclReduction::max;
    default:  // plan_nccl_calls() refuses the others
      return NcclReduction::sum;
  }
}

/// Builds the calls of one member.
class Planner {
 public:
  Planner(const Operation& operation, int index, NcclDataType type, BufferView barrier_word)
      : operation_(operation),
        index_(static_cast<std::size_t>(index)),
        width_(core::size_of(operation.dtype)),
        type_(type),
        reduction_(reduction_of(operation.reduce)),
        barrier_word_(barrier_word) {}

  std::vector<NcclCall> run() {
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        add(Function::all_reduce, operation_.input.data, operation_.output.data, elements(operation_.input));
        break;
      case OperationKind::reduce_scatter:
        reduce_scatter();
        break;
      case OperationKind::all_gather:
        all_gather();
        break;
      case OperationKind::broadcast:
        broadcast();
        break;
      case OperationKind::all_to_all:
        all_to_all();
        break;
      case OperationKind::send:
        move(Function::send, operation_.input.data, nullptr, operation_.input.bytes, operation_.peer);
        break;
      case OperationKind::receive:
        move(Function::receive, nullptr, operation_.output.data, operation_.output.bytes, operation_.peer);
        break;
      case OperationKind::barrier:
        type_ = NcclDataType::i32;
        reduction_ = NcclReduction::max;
        add(Function::all_reduce, barrier_word_.data, barrier_word_.data, 1);
        break;
    }
    return std::move(calls_);
  }

 private:
  std::size_t elements(ConstBufferView view) const { return view.bytes / width_; }

  void add(Function function, const std::byte* input, std::byte* output, std::size_t count, int peer = 0) {
    if (count == 0) return;
    calls_.push_back({function, input, output, count, type_, reduction_, peer});
  }

  /// Calls that do not compute are given bytes.
  void move(Function function, const std::byte* input, std::byte* output, std::size_t bytes, int peer = 0) {
    if (bytes == 0) return;
    calls_.push_back({function, input, output, bytes, NcclDataType::u8, NcclReduction::sum, peer});
  }

  void reduce_scatter() {
    const auto& counts = operation_.output_counts;
    if (counts.is_even())
      return add(Function::reduce_scatter, operation_.input.data, operation_.output.data, counts[0]);
    const auto offsets = offsets_of(counts);
    for (std::size_t root = 0; root < counts.size(); ++root) {
      add(Function::reduce, operation_.input.data + offsets[root] * width_,
          root == index_ ? operation_.output.data : nullptr, counts[root], static_cast<int>(root));
    }
  }

  void all_gather() {
    const auto& counts = operation_.input_counts;
    if (counts.is_even())
      return move(Function::all_gather, operation_.input.data, operation_.output.data, counts[0] * width_);
    const auto offsets = offsets_of(counts);
    for (std::size_t root = 0; root < counts.size(); ++root) {
      std::byte* const part = operation_.output.data + offsets[root] * width_;
      move(Function::broadcast, root == index_ ? operation_.input.data : part, part, counts[root] * width_,
           static_cast<int>(root));
    }
  }

  void broadcast() {
    const bool is_root = operation_.peer == static_cast<int>(index_);
    // In place on every member: then NCCL does not write at the root, and reads nothing elsewhere.
    auto* const memory = is_root ? const_cast<std::byte*>(operation_.input.data) : operation_.output.data;
    const std::size_t bytes = is_root ? operation_.input.bytes : operation_.output.bytes;
    move(Function::broadcast, memory, memory, bytes, operation_.peer);
  }

  void all_to_all() {
    const auto sends = offsets_of(operation_.input_counts);
    const auto receives = offsets_of(operation_.output_counts);
    for (std::size_t peer = 0; peer < operation_.input_counts.size(); ++peer) {
      move(Function::send, operation_.input.data + sends[peer] * width_, nullptr,
           operation_.input_counts[peer] * width_, static_cast<int>(peer));
      move(Function::receive, nullptr, operation_.output.data + receives[peer] * width_,
           operation_.output_counts[peer] * width_, static_cast<int>(peer));
    }
  }

  const Operation& operation_;
  std::size_t index_;
  std::size_t width_;
  NcclDataType type_;
  NcclReduction reduction_;
  BufferView barrier_word_;
  std::vector<NcclCall> calls_;
};

/// The only member's input is its output.
std::vector<NcclPlan::Copy> copies_alone(const Operation& operation) {
  const bool is_copy = operation.kind != OperationKind::broadcast && operation.kind != OperationKind::barrier;
  if (!is_copy || operation.output.bytes == 0 || operation.input.data == operation.output.data) return {};
  return {{operation.input, operation.output}};
}

}  // namespace

const char* name_of(NcclCall::Function function) noexcept {
  switch (function) {
    case Function::all_reduce:
      return "ncclAllReduce";
    case Function::reduce:
      return "ncclReduce";
    case Function::reduce_scatter:
      return "ncclReduceScatter";
    case Function::all_gather:
      return "ncclAllGather";
    case Function::broadcast:
      return "ncclBroadcast";
    case Function::send:
      return "ncclSend";
    case Function::receive:
      return "ncclRecv";
  }
  return "unknown";
}

core::Result<NcclPlan> plan_nccl_calls(const Operation& operation, int index, int size,
                                       BufferView barrier_word) {
  const auto type = type_of(operation.dtype);
  if (reduces(operation.kind) && !type) {
    return core::fail(core::Errc::unavailable,
                      "{}: dtype: NCCL does not reduce {} (it has no 16-bit integers); cast to a wider type "
                      "first",
                      name_of(operation.kind), core::name_of(operation.dtype));
  }
  if (reduces(operation.kind) && (operation.reduce == ReduceOp::product || is_of_bits(operation.reduce))) {
    return core::fail(
        core::Errc::unavailable,
        "{}: reduce: expected sum, average, min or max with NCCL, found {}; reduce in host memory",
        name_of(operation.kind), name_of(operation.reduce));
  }
  if (operation.rows.elements > 0) {
    return core::fail(core::Errc::unavailable,
                      "{}: rows: NCCL moves memory in one piece; put the rows together with a kernel first",
                      name_of(operation.kind));
  }
  if (size == 1) return NcclPlan{.calls = {}, .copies = copies_alone(operation)};
  Planner planner(operation, index, type.value_or(NcclDataType::u8), barrier_word);
  return NcclPlan{.calls = planner.run(), .copies = {}};
}

}  // namespace troupe::gpu
