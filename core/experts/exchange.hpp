#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/experts/dispatch.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Distribution of experts over the ranks of an expert-parallel group: each rank owns the same number of
/// consecutive experts; expert e belongs to rank e / per_rank.
struct ExpertOwners {
  std::size_t experts = 0;
  std::size_t ranks = 1;

  /// Errc::invalid_argument unless the number of ranks divides the number of experts.
  static Result<ExpertOwners> create(std::size_t experts, std::size_t ranks);

  std::size_t per_rank() const { return experts / ranks; }
  std::size_t owner(std::size_t expert) const { return expert / per_rank(); }
  std::size_t first(std::size_t rank) const { return rank * per_rank(); }
};

/// Distribution of experts over the ranks of an expert-parallel group, each expert in equal parts, which are
/// on consecutive ranks. Ranks that share a layer may form `columns`, with a group each and different
/// experts: blocks of neighbouring experts are dealt to the columns in turn. What is exchanged in a column
/// are rows of parts of its experts, which ExpertOwners knows as experts.
struct ExpertSpread {
  std::size_t experts = 0;
  std::size_t ranks = 1;
  std::size_t parts = 1;
  std::size_t columns = 1;
  std::size_t column = 0;

  /// Errc::invalid_argument unless the ranks of all columns have all parts of equally many experts.
  static Result<ExpertSpread> create(const ExpertSpread& spread);

  ExpertOwners owners() const { return {per_rank() * ranks, ranks}; }
  std::size_t per_rank() const { return experts * parts / (ranks * columns); }
  /// The first expert of which a rank has a part.
  std::size_t first(std::size_t rank) const { return column * per_column() + rank / parts * per_rank(); }
  /// The rank that has the first part of an expert, in its column.
  std::size_t owner(std::size_t expert) const { return expert % per_column() / per_rank() * parts; }
  std::size_t column_of(std::size_t expert) const { return expert / per_column(); }
  std::size_t per_column() const { return experts / columns; }
};

/// The choices of experts of the column, each once for each part of its expert: K * parts for a token.
Dispatch dispatch_of_parts(const ExpertSpread& spread, const Dispatch& dispatch);

/// What the ranks of an expert-parallel group have of a microbatch.
struct RoutedTokens {
  std::size_t tokens = 0;  ///< of each rank in an exchange
  std::size_t choices = 0;
  /// Those that share a microbatch, each with as many of its tokens, and decide about it together: so many
  /// of them on each of consecutive ranks, where each takes part in an exchange of its own.
  std::size_t members = 1, members_of_rank = 1;
  std::optional<double> capacity_factor{};  ///< of a microbatch; none: all choices are kept
};

/// Rows that may come to a rank's experts in one exchange: all choices of all ranks, or those that a capacity
/// lets through. Errc::invalid_argument as expert_capacity().
Result<std::int64_t> most_expert_rows(const ExpertSpread& spread, const RoutedTokens& routed);

/// Rows that belong together among those a rank received.
struct ExpertRows {
  std::size_t source = 0;  ///< the rank whose tokens they are from
  std::int64_t first = 0;  ///< row
  std::int64_t count = 0;

  friend bool operator==(const ExpertRows&, const ExpertRows&) = default;
};

/// What one rank sends and receives when all ranks dispatch their tokens; combining goes the other way.
/// Counts are in rows. Received rows are ordered by source, and within a source by expert.
struct ExpertExchange {
  std::vector<std::int64_t> sent;      ///< to each rank, in the order of slots
  std::vector<std::int64_t> received;  ///< from each rank
  /// For each own expert its rows from every source, in rank order, including sources without rows: one
  /// product for each gives the bits of the source's own computation, whichever rank computes it.
  std::vector<std::vector<ExpertRows>> products;
  /// For grouped products: where each received row goes in their order. None: rows stay as received.
  std::optional<std::vector<std::int64_t>> grouped;

  std::int64_t received_rows() const;
};

/// `slots_of` has one list per rank of the group, in rank order: its slots per expert. All ranks exchange
/// these before any tokens. Errc::invalid_argument for a list of another length or with negative counts;
/// Errc::out_of_memory, with the number that every rank sends, if more than `most_rows` would be received.
Result<ExpertExchange> plan_exchange(const ExpertOwners& owners, std::size_t rank,
                                     std::span<const std::vector<std::int64_t>> slots_of,
                                     std::int64_t most_rows);

/// What a rank that has all experts exchanges: received rows are its slots.
ExpertExchange exchange_alone(const Dispatch& dispatch);

/// Like plan_exchange(), before ranks can hear each other: as if one in `together` of them had counted what
/// this rank has, and the others nothing.
Result<ExpertExchange> plan_without_others(const ExpertOwners& owners, std::size_t rank, std::size_t together,
                                           const Dispatch& dispatch, std::int64_t most_rows);

/// Groups the rows of each expert, by source, so that there is one product per expert.
void group_rows(ExpertExchange& exchange);

}  // namespace troupe::core
