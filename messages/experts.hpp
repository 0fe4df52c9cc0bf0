#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "messages/failure.hpp"

namespace troupe::messages {

// The conversation of an ExpertGroup, which serves one layer. Rows never pass through a message: these say
// how many there are. E experts of all ranks of the group.

/// Whether rows go from their tokens' rank to their experts', or back.
enum class RowsGo : std::uint8_t { out, back };

/// Trainer to ExpertGroup: how many rows of a microbatch go to each expert, and how many choices had no room.
/// Begins an exchange; exchanges are numbered from 1. Lane -1: of no step; -2: of a step.
struct RowsCounted {
  core::Step step{};
  core::Lane lane{-1};
  std::uint64_t exchange = 0;
  std::vector<std::int64_t> counts;  ///< (E)
  std::int64_t chosen = 0;           ///< choices of the microbatch's tokens
  std::int64_t dropped = 0;          ///< of them

  friend bool operator==(const RowsCounted&, const RowsCounted&) = default;
};

/// Expert plane to ExpertGroup: what each rank of the group has counted, in the order of the group. Empty:
/// they could not be told each other, and there is no exchange.
struct CountsKnown {
  std::uint64_t exchange = 0;
  std::vector<std::vector<std::int64_t>> counts;

  friend bool operator==(const CountsKnown&, const CountsKnown&) = default;
};

/// Trainer to ExpertGroup: rows of the exchange shall move. Lists are by rank of the group; what a rank keeps
/// for itself need not move, and is not looked at.
struct RowsWanted {
  std::uint64_t exchange = 0;
  RowsGo go = RowsGo::out;
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> taken;

  friend bool operator==(const RowsWanted&, const RowsWanted&) = default;
};

/// Expert plane to ExpertGroup: they have moved, and may be read; or they have not begun to.
struct RowsArrived {
  std::uint64_t exchange = 0;
  RowsGo go = RowsGo::out;
  std::int64_t sent = 0;   ///< rows, to other ranks
  std::int64_t taken = 0;  ///< from other ranks
  bool moved = true;

  friend bool operator==(const RowsArrived&, const RowsArrived&) = default;
};

/// Trainer to ExpertGroup: how often each expert was chosen by tokens of a lane, and how often of these it
/// had no room.
struct LoadCounted {
  core::Step step{};
  std::vector<std::int64_t> chosen;   ///< (E)
  std::vector<std::int64_t> dropped;  ///< (E)

  friend bool operator==(const LoadCounted&, const LoadCounted&) = default;
};

/// Expert plane to ExpertGroup, before StepDecided: the sums of all ranks, which came with the verdict.
struct LoadSummed {
  core::Step step{};
  std::vector<std::int64_t> chosen;   ///< (E)
  std::vector<std::int64_t> dropped;  ///< (E)

  friend bool operator==(const LoadSummed&, const LoadSummed&) = default;
};

/// Expert plane to ExpertGroup: the state that a checkpoint has.
struct ExpertsRestored {
  std::vector<float> bias;            ///< (E); empty: unchanged
  std::vector<std::int64_t> chosen;   ///< (E), since the run began
  std::vector<std::int64_t> dropped;  ///< (E), as above

  friend bool operator==(const ExpertsRestored&, const ExpertsRestored&) = default;
};

}  // namespace troupe::messages
