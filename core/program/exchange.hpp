#pragma once

#include <cstdint>
#include <vector>

#include "core/program/counts.hpp"
#include "core/program/program.hpp"

namespace troupe::core {

/// The number of collectives of an exchange, or of an all_gather of gradients.
std::int64_t chunks_of(const ProgramEntry& entry);
/// How much of the longest part is in a chunk.
std::int64_t chunk_elements(const ProgramEntry& entry);
/// The part of each member's range that is in the chunk with this number, from 0; empty where the range is
/// shorter. Ranges are relative to all of the entry's elements.
std::vector<ElementRange> chunk_ranges(const ProgramEntry& entry, std::int64_t chunk);
/// That of one member.
ElementRange chunk_range(const ProgramEntry& entry, std::int64_t chunk, std::int64_t member);

/// One of the all_to_alls of an exchange of gradients, as one member posts it. Ranges are relative to the
/// tensor as placed before the exchange (ProgramEntry::from); a member sends the same range of each of its
/// roots, one root after the other, in the order of the receivers. A receiver gets, for each sender in group
/// order, the range it owns of each of the sender's roots.
struct ExchangeChunk {
  ElementRange own;      ///< what this member gets; empty where its part is shorter
  Counts input_counts;   ///< elements to each receiver: roots here x its range
  Counts output_counts;  ///< elements from each sender: its roots x this rank's range
};

/// The chunk with this number, from 0, as posted by the member at `place` of the group.
ExchangeChunk exchange_chunk(const ProgramEntry& exchange, std::int64_t place, std::int64_t chunk);

}  // namespace troupe::core
