#include "gpu/collective/simulated/execute.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/reduce.hpp"
#include "gpu/collective/row_cursor.hpp"

namespace troupe::gpu {
namespace {

using Operations = std::span<const Operation* const>;

void copy_equal(ConstBufferView from, BufferView to) {
  CHECK(from.bytes == to.bytes, "members that agree copy equal sizes");
  if (from.bytes > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes);
}

/// Reduces the range [begin, begin + count) elements of all inputs.
void reduce_range(Operations operations, std::size_t begin, std::size_t count, std::byte* output) {
  const Operation& first = *operations.front();
  std::vector<const std::byte*> inputs;
  for (const Operation* operation : operations) {
    inputs.push_back(operation->input.data + begin * core::size_of(first.dtype));
  }
  if (count > 0) reduce_in_order(first.dtype, first.reduce, inputs, output, count);
}

void all_reduce(Operations operations) {
  const Operation& first = *operations.front();
  // In separate memory, because outputs may be inputs.
  std::vector<std::byte> sum(first.input.bytes);
  reduce_range(operations, 0, sum.size() / core::size_of(first.dtype), sum.data());
  for (const Operation* operation : operations) copy_equal({sum.data(), sum.size()}, operation->output);
}

void reduce_scatter(Operations operations) {
  const auto& counts = operations.front()->output_counts;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < operations.size(); begin += counts[i++])
    reduce_range(operations, begin, counts[i], operations[i]->output.data);
}

/// Gathered once, so that each member gets one piece and not one from each other member.
void all_gather(Operations operations) {
  std::vector<std::byte> gathered;
  gathered.reserve(operations.front()->output.bytes);
  for (const Operation* from : operations)
    gathered.insert(gathered.end(), from->input.data, from->input.data + from->input.bytes);
  for (const Operation* to : operations) copy_equal({gathered.data(), gathered.size()}, to->output);
}

/// To a few receivers at a time, because each has memory of its own.
constexpr std::size_t kReceivers = 64;

/// A single element, which many ranks exchange with many, takes less time than a call.
void copy_piece(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == sizeof(float)) {
    std::memcpy(to, from, sizeof(float));
  } else {
    std::memcpy(to, from, bytes);
  }
}

bool are_even_and_consecutive(Operations operations) {
  return std::ranges::all_of(operations, [](const Operation* operation) {
    return operation->rows.elements == 0 && operation->input_counts.is_even() &&
           operation->output_counts.is_even();
  });
}

/// Each member sends as many bytes to each as the others do, one after another.
void exchange_evenly(Operations operations, std::size_t bytes) {
  if (bytes == 0) return;
  for (std::size_t first = 0; first < operations.size(); first += kReceivers) {
    const std::size_t end = std::min(first + kReceivers, operations.size());
    for (std::size_t from = 0; from < operations.size(); ++from) {
      const std::byte* const sent = operations[from]->input.data;
      for (std::size_t to = first; to < end; ++to)
        copy_piece(operations[to]->output.data + from * bytes, sent + to * bytes, bytes);
    }
  }
}

void all_to_all(Operations operations) {
  const std::size_t width = core::size_of(operations.front()->dtype);
  if (are_even_and_consecutive(operations))
    return exchange_evenly(operations, operations.front()->input_counts[0] * width);
  std::vector<std::size_t> sent(operations.size(), 0);     // elements, per sender
  std::vector<std::size_t> arrived(operations.size(), 0);  // and per receiver
  for (std::size_t first = 0; first < operations.size(); first += kReceivers) {
    const std::size_t end = std::min(first + kReceivers, operations.size());
    for (std::size_t from = 0; from < operations.size(); ++from) {
      const auto& counts = operations[from]->input_counts;
      for (std::size_t to = first; to < end; ++to) {
        if (counts[to] == 0) continue;
        copy_rows(input_from(*operations[from], sent[from] * width),
                  output_from(*operations[to], arrived[to] * width), counts[to] * width);
        sent[from] += counts[to];
        arrived[to] += counts[to];
      }
    }
  }
}

}  // namespace

void execute_together(Operations operations) {
  const Operation& first = *operations.front();
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
      const Operation* root = operations[static_cast<std::size_t>(first.peer)];
      for (const Operation* operation : operations) {
        if (operation != root || operation->output.bytes > 0) copy_equal(root->input, operation->output);
      }
      return;
    }
    case OperationKind::send:
    case OperationKind::receive:
      return copy_equal(operations[0]->input, operations[1]->output);
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
      const std::size_t moved = std::max(operation.input_counts.total(), operation.output_counts.total());
      return moved * core::size_of(operation.dtype) / n * (n - 1);
    }
    default:
      return bytes;
  }
}

}  // namespace troupe::gpu
