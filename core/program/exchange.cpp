#include "core/program/exchange.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

std::int64_t longest_part_of(const ProgramEntry& entry) {
  return longest_part(entry.elements, entry.counts.members());
}

}  // namespace

std::int64_t chunks_of(const ProgramEntry& entry) {
  CHECK(entry.operation == CollectiveKind::all_to_all || entry.operation == CollectiveKind::all_gather,
        "only exchanges and all_gathers go in chunks");
  const std::int64_t longest = longest_part_of(entry);
  return entry.chunk == 0 || longest == 0 ? 1 : (longest + entry.chunk - 1) / entry.chunk;
}

std::int64_t chunk_elements(const ProgramEntry& entry) {
  return entry.chunk == 0 ? longest_part_of(entry) : entry.chunk;
}

std::vector<ElementRange> chunk_ranges(const ProgramEntry& entry, std::int64_t chunk) {
  const auto members = static_cast<int>(entry.counts.members());
  const std::int64_t most = chunk_elements(entry);
  std::vector<ElementRange> ranges;
  ranges.reserve(static_cast<std::size_t>(members));
  for (int member = 0; member < members; ++member) {
    const ElementRange part = even_part({0, entry.elements}, members, member);
    const std::int64_t start = std::min(part.start + chunk * most, part.end);
    ranges.push_back({start, std::min(start + most, part.end)});
  }
  return ranges;
}

ExchangeChunk exchange_chunk(const ProgramEntry& exchange, std::int64_t place, std::int64_t chunk) {
  ExchangeChunk found{.ranges = chunk_ranges(exchange, chunk)};
  const auto counts = exchange.counts.each();
  const auto own = static_cast<std::size_t>(place);
  const auto roots_of = [&](std::size_t member) {
    return exchange.elements == 0 ? 0 : counts[member] / exchange.elements;
  };
  const std::int64_t own_roots = roots_of(own);
  const std::int64_t own_range = found.ranges[own].size();
  found.input_counts.reserve(counts.size());
  found.output_counts.reserve(counts.size());
  for (std::size_t member = 0; member < found.ranges.size(); ++member) {
    found.input_counts.push_back(own_roots * found.ranges[member].size());
    found.output_counts.push_back(roots_of(member) * own_range);
  }
  return found;
}

}  // namespace troupe::core
