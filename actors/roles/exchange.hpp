#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/checkpoint/cliques.hpp"

namespace troupe::actors {

/// A range of a copy that is in transit.
struct ExchangeSpan {
  std::uint32_t transfer = 0;  ///< index in Exchange::transfers
  std::uint64_t offset = 0;    ///< bytes from the beginning of the copy
  std::uint64_t bytes = 0;

  friend bool operator==(const ExchangeSpan&, const ExchangeSpan&) = default;
};

/// How the members of a clique send copies to each other: in rounds, each an all-gather to which a member
/// gives at most `chunk_bytes` of what it has to send, one copy after the other. Members send at the same
/// time; a member that has nothing left gives nothing. The same on all members.
struct Exchange {
  core::Clique clique;
  std::vector<core::CopyTransfer> transfers;
  std::uint64_t chunk_bytes = 1;

  std::uint32_t rounds() const;
  /// Bytes that each member gives in a round.
  std::vector<std::size_t> counts(std::uint32_t round) const;
  /// What a member, identified by its place in the clique, gives in a round.
  std::vector<ExchangeSpan> spans(std::uint32_t round, std::size_t member) const;

  friend bool operator==(const Exchange&, const Exchange&) = default;
};

}  // namespace troupe::actors
