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

ElementRange chunk_range(const ProgramEntry& entry, std::int64_t chunk, std::int64_t member) {
  const std::int64_t most = chunk_elements(entry);
  const ElementRange part =
      even_part({0, entry.elements}, static_cast<int>(entry.counts.members()), static_cast<int>(member));
  const std::int64_t start = std::min(part.start + chunk * most, part.end);
  return {start, std::min(start + most, part.end)};
}

std::vector<ElementRange> chunk_ranges(const ProgramEntry& entry, std::int64_t chunk) {
  const std::int64_t members = entry.counts.members();
  std::vector<ElementRange> ranges;
  ranges.reserve(static_cast<std::size_t>(members));
  for (std::int64_t member = 0; member < members; ++member)
    ranges.push_back(chunk_range(entry, chunk, member));
  return ranges;
}

ExchangeChunk exchange_chunk(const ProgramEntry& exchange, std::int64_t place, std::int64_t chunk) {
  const auto& counts = exchange.counts;
  const auto roots_of = [&](std::int64_t elements) {
    return exchange.elements == 0 ? 0 : elements / exchange.elements;
  };
  ExchangeChunk found{.own = chunk_range(exchange, chunk, place)};
  // The first of the parts are longer by an element than the others.
  const std::int64_t members = counts.members(), longer = exchange.elements % members;
  const std::int64_t own_roots = roots_of(counts.of(place));
  const auto sent_to = [&](std::int64_t member) {
    return own_roots * chunk_range(exchange, chunk, member).size();
  };
  found.input_counts = Counts::of_runs({{sent_to(0), longer}, {sent_to(members - 1), members - longer}});
  std::vector<CountRun> received;
  for (const auto& [elements, senders] : counts.runs)
    received.push_back({roots_of(elements) * found.own.size(), senders});
  found.output_counts = Counts::of_runs(received);
  return found;
}

}  // namespace troupe::core
