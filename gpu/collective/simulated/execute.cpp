#include "gpu/collective/simulated/execute.hpp"

#include <cstring>
#include <vector>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/reduce.hpp"
#include "gpu/collective/row_cursor.hpp"

namespace troupe::gpu {
namespace {

void copy_equal(ConstBufferView from, BufferView to) {
  CHECK(from.bytes == to.bytes, "members that agree copy equal sizes");
  if (from.bytes > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes);
}

/// Reduces the range [begin, begin + count) elements of all inputs.
void reduce_range(std::span<const Operation> operations, std::size_t begin, std::size_t count,
                  std::byte* output) {
  const Operation& first = operations.front();
  std::vector<const std::byte*> inputs;
  for (const Operation& operation : operations) {
    inputs.push_back(operation.input.data + begin * core::size_of(first.dtype));
  }
  if (count > 0) reduce_in_order(first.dtype, first.reduce, inputs, output, count);
}

void all_reduce(std::span<const Operation> operations) {
  const Operation& first = operations.front();
  // In separate memory, because outputs may be inputs.
  std::vector<std::byte> sum(first.input.bytes);
  reduce_range(operations, 0, sum.size() / core::size_of(first.dtype), sum.data());
  for (const Operation& operation : operations) copy_equal({sum.data(), sum.size()}, operation.output);
}

void reduce_scatter(std::span<const Operation> operations) {
  const auto& counts = operations.front().output_counts;
  const auto offsets = offsets_of(counts);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    reduce_range(operations, offsets[i], counts[i], operations[i].output.data);
  }
}

void all_gather(std::span<const Operation> operations) {
  const std::size_t width = core::size_of(operations.front().dtype);
  const auto& counts = operations.front().input_counts;
  const auto offsets = offsets_of(counts);
  for (const Operation& to : operations) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      copy_equal(operations[i].input, to.output.subview(offsets[i] * width, counts[i] * width));
    }
  }
}

void all_to_all(std::span<const Operation> operations) {
  const std::size_t width = core::size_of(operations.front().dtype);
  std::vector<std::size_t> arrived(operations.size(), 0);  // elements, per receiver
  for (std::size_t from = 0; from < operations.size(); ++from) {
    std::size_t sent = 0;
    for (std::size_t to = 0; to < operations.size(); ++to) {
      const std::size_t count = operations[to].output_counts[from];
      copy_rows(input_from(operations[from], sent * width), output_from(operations[to], arrived[to] * width),
                count * width);
      sent += count;
      arrived[to] += count;
    }
  }
}

}  // namespace

void execute_together(std::span<const Operation> operations) {
  const Operation& first = operations.front();
  switch (first.kind) {
    case OperationKind::all_reduce:
      return all_reduce(operations);
    case OperationKind::reduce_scatter:
      return reduce_scatter(operations);
    case OperationKind::all_gather:
      return all_gather(operations);
    case OperationKind::all_to_all:
      return all_to_all(operations);
    case OperationKind::broadcast: {
      const Operation& root = operations[static_cast<std::size_t>(first.peer)];
      for (const Operation& operation : operations) {
        if (&operation != &root || operation.output.bytes > 0) copy_equal(root.input, operation.output);
      }
      return;
    }
    case OperationKind::send:
    case OperationKind::receive:
      return copy_equal(operations[0].input, operations[1].output);
    case OperationKind::barrier:
      return;
  }
}

std::uint64_t bytes_on_the_wire(const Operation& operation, int size) {
  const auto n = static_cast<std::uint64_t>(size);
  const std::uint64_t bytes = std::max(operation.input.bytes, operation.output.bytes);
  switch (operation.kind) {
    case OperationKind::all_reduce:
      return 2 * bytes / n * (n - 1);
    case OperationKind::reduce_scatter:
    case OperationKind::all_gather:
      return bytes / n * (n - 1);
    case OperationKind::all_to_all: {
      const std::size_t moved = std::max(total_of(operation.input_counts), total_of(operation.output_counts));
      return moved * core::size_of(operation.dtype) / n * (n - 1);
    }
    default:
      return bytes;
  }
}

}  // namespace troupe::gpu
