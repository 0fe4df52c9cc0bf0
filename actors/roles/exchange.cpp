#include "actors/roles/exchange.hpp"

#include <algorithm>

namespace troupe::actors {

namespace {

std::uint64_t bytes_from(const Exchange& exchange, core::Rank member) {
  std::uint64_t bytes = 0;
  for (const auto& transfer : exchange.transfers) bytes += transfer.from == member ? transfer.bytes : 0;
  return bytes;
}

}  // namespace

std::uint32_t Exchange::rounds() const {
  std::uint64_t most = 0;
  for (auto member : clique) most = std::max(most, bytes_from(*this, member));
  return static_cast<std::uint32_t>(most / chunk_bytes + (most % chunk_bytes != 0 ? 1 : 0));
}

std::vector<std::size_t> Exchange::counts(std::uint32_t round) const {
  std::vector<std::size_t> counts;
  const auto begin = round * chunk_bytes;
  for (auto member : clique) {
    const auto bytes = bytes_from(*this, member);
    counts.push_back(bytes <= begin ? 0 : std::min(chunk_bytes, bytes - begin));
  }
  return counts;
}

std::vector<ExchangeSpan> Exchange::spans(std::uint32_t round, std::size_t member) const {
  std::vector<ExchangeSpan> spans;
  const auto begin = round * chunk_bytes;
  const auto end = begin + chunk_bytes;
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].from != clique[member]) continue;
    const auto first = std::max(begin, at);
    const auto last = std::min(end, at + transfers[i].bytes);
    if (first < last) spans.push_back({i, first - at, last - first});
    at += transfers[i].bytes;
  }
  return spans;
}

}  // namespace troupe::actors
