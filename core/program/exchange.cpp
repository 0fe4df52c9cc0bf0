#include "core/program/exchange.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

std::int64_t longest_part(const ProgramEntry& exchange) {
  const std::int64_t members = exchange.counts.members();
  return (exchange.elements + members - 1) / members;
}

}  // namespace

std::int64_t chunks_of(const ProgramEntry& exchange) {
  CHECK(exchange.operation == CollectiveKind::all_to_all, "only an exchange goes in chunks");
  const std::int64_t longest = longest_part(exchange);
  return exchange.chunk == 0 || longest == 0 ? 1 : (longest + exchange.chunk - 1) / exchange.chunk;
}

ExchangeChunk exchange_chunk(const ProgramEntry& exchange, std::int64_t place, std::int64_t chunk) {
  const std::int64_t members = exchange.counts.members();
  const std::int64_t most = exchange.chunk == 0 ? longest_part(exchange) : exchange.chunk;
  const auto roots_of = [&](std::int64_t member) {
    return exchange.elements == 0 ? 0 : exchange.counts.of(member) / exchange.elements;
  };
  const auto range_of = [&](std::int64_t member) {
    const ElementRange part =
        even_part({0, exchange.elements}, static_cast<int>(members), static_cast<int>(member));
    const std::int64_t start = std::min(part.start + chunk * most, part.end);
    return ElementRange{start, std::min(start + most, part.end)};
  };
  const std::int64_t own_roots = roots_of(place);
  const std::int64_t own_range = range_of(place).size();
  ExchangeChunk found;
  for (std::int64_t member = 0; member < members; ++member) {
    found.ranges.push_back(range_of(member));
    found.input_counts.push_back(own_roots * found.ranges.back().size());
    found.output_counts.push_back(roots_of(member) * own_range);
  }
  return found;
}

}  // namespace troupe::core
