#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/result.hpp"

namespace troupe::apps {

struct MoeBench {
  int ranks = 2;
  std::string collectives = "shared_memory";  ///< or tcp
  std::size_t tokens = 2048;                  ///< of each rank
  std::size_t width = 1024;                   ///< fp32 elements of a token
  std::size_t experts = 16;                   ///< of all ranks together, which must divide them
  std::size_t choices = 2;                    ///< experts of each token
  int repeats = 9;
};

/// Medians, as rank 0 sees them. All ranks begin each of them together.
struct MoeTime {
  std::size_t bytes = 0;        ///< of the rows that rank 0 sends to all ranks, itself included
  std::size_t own_bytes = 0;    ///< of these, the rows to itself
  double dispatch_seconds = 0;  ///< counts, and the exchange, which takes rows from their tokens
  double combine_seconds = 0;   ///< the way back to slots, and the weighted sums
  double plain_seconds = 0;     ///< two exchanges of the same rows as they lie, and nothing else
  double counts_seconds = 0;    ///< of dispatch: rows per expert and rank, and what follows from them
  double sum_seconds = 0;       ///< of combine
  double shared_seconds = 0;    ///< a small expert that all tokens share
  double both_seconds = 0;      ///< that expert while the rows of dispatch are exchanged
  double exchange_seconds = 0;  ///< of dispatch alone

  double ratio() const { return (dispatch_seconds + combine_seconds) / plain_seconds; }
  /// How much of the shorter of exchange and shared expert ran beside the other, from 0 to 1.
  double overlapped_share() const;
};

/// Forks the ranks, so the process must not have threads yet. Their tokens go to experts at random and come
/// back. Waits for the ranks, and leaves nothing behind. Errc::invalid_argument for experts that ranks do not
/// divide, or more choices than experts.
core::Result<MoeTime> measure_moe(const MoeBench& bench);

}  // namespace troupe::apps
