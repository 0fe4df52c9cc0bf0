#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

/// Experts over the ranks of an expert-parallel group: each rank owns as many neighbours, expert e is that
/// of rank e / per_rank.
struct ExpertOwners {
  std::size_t experts = 0;
  std::size_t ranks = 1;

  /// Errc::invalid_argument when the ranks do not divide the experts.
  static Result<ExpertOwners> create(std::size_t experts, std::size_t ranks);

  std::size_t per_rank() const { return experts / ranks; }
  std::size_t owner(std::size_t expert) const { return expert / per_rank(); }
  std::size_t first(std::size_t rank) const { return rank * per_rank(); }
};

/// Rows that belong together in what a rank received.
struct ExpertRows {
  std::size_t source = 0;  ///< the rank whose tokens they are
  std::int64_t first = 0;  ///< row
  std::int64_t count = 0;

  friend bool operator==(const ExpertRows&, const ExpertRows&) = default;
};

/// What one rank sends and receives when all ranks dispatch their tokens; combining goes the other way.
/// Counts are rows. Rows are received by source, and of each source by expert.
struct ExpertExchange {
  std::vector<std::int64_t> sent;      ///< to each rank, in the order of slots
  std::vector<std::int64_t> received;  ///< from each rank
  /// Of each own expert its rows of every source, in rank order, those without rows too: one product each
  /// gives the bits of the source's own computation, whichever rank does it.
  std::vector<std::vector<ExpertRows>> products;
  /// Of grouped products: where each received row goes among theirs. None: rows stay as received.
  std::optional<std::vector<std::int64_t>> grouped;

  std::int64_t received_rows() const;
};

/// `slots_of` has one list per rank of the group, in rank order: its slots per expert. All ranks exchange
/// these before any token. Errc::invalid_argument for a list of another length or with negative counts;
/// Errc::out_of_memory, with what every rank sends, when more than `most_rows` would be received.
Result<ExpertExchange> plan_exchange(const ExpertOwners& owners, std::size_t rank,
                                     std::span<const std::vector<std::int64_t>> slots_of,
                                     std::int64_t most_rows);

/// Puts the rows of an expert together, by source, so that there is one product for each expert.
void group_rows(ExpertExchange& exchange);

}  // namespace troupe::core
