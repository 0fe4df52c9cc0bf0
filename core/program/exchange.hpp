#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.hpp"

namespace troupe::core {

/// How many collectives an exchange, or an all_gather of gradients, goes in.
std::int64_t chunks_of(const ProgramEntry& entry);
/// What of each member's part goes in the chunk with this number, from 0; empty where a part is shorter.
/// Ranges are relative to all of the entry's elements.
std::vector<ElementRange> chunk_ranges(const ProgramEntry& entry, std::int64_t chunk);

/// One of the all_to_alls that an exchange of gradients goes in, as one member posts it. Ranges are relative
/// to the tensor as it lies before the exchange (ProgramEntry::from); a member sends the same range of each
/// of its roots, one root after the other, in the order of the receivers. What a receiver gets is, for each
/// sender in group order, the range it owns of each of the sender's roots.
struct ExchangeChunk {
  std::vector<ElementRange> ranges;         ///< by receiver; empty where its part is shorter
  std::vector<std::int64_t> input_counts;   ///< elements to each receiver: roots here x its range
  std::vector<std::int64_t> output_counts;  ///< elements from each sender: its roots x the range of this rank
};

/// The chunk with this number, from 0, as the member at `place` of the group posts it.
ExchangeChunk exchange_chunk(const ProgramEntry& exchange, std::int64_t place, std::int64_t chunk);

}  // namespace troupe::core
