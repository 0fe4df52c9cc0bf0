#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/cliques.hpp"
#include "core/ids.hpp"
#include "messages/failure.hpp"

namespace troupe::messages {

// `sequence` counts the local saves of a session, from 1; it is the same on all ranks. `exchange` counts the
// exchanges of one rank, from 1.

/// Trainer to ReplicaKeeper, once: makes the names of this session's local saves unique; the same on all
/// ranks.
struct ReplicaSeed {
  std::uint64_t seed = 0;

  friend bool operator==(const ReplicaSeed&, const ReplicaSeed&) = default;
};

/// I/O worker to ReplicaKeeper: the directory of the rank's own copy exists, or could not be created.
struct CopyDirectoryMade {
  std::uint64_t sequence = 0;
  Failure failure;

  friend bool operator==(const CopyDirectoryMade&, const CopyDirectoryMade&) = default;
};

/// I/O worker to ReplicaKeeper: the rank's own copy is complete, and this is its size when sent to others.
struct CopySealed {
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  Failure failure;

  friend bool operator==(const CopySealed&, const CopySealed&) = default;
};

/// ReplicaKeeper to ReplicaCoordinator: the rank has its own copy of the state after `step`, or cannot have
/// it.
struct CopyReady {
  std::uint64_t sequence = 0;
  core::Rank rank{};
  core::Step step{};
  std::uint64_t bytes = 0;
  Failure failure;

  friend bool operator==(const CopyReady&, const CopyReady&) = default;
};

/// ReplicaCoordinator to every ReplicaKeeper: all ranks have their own copies; exchange them in the clique.
struct ExchangeBegan {
  std::uint64_t sequence = 0;
  std::vector<std::uint64_t> bytes;  ///< of each clique member's copy

  friend bool operator==(const ExchangeBegan&, const ExchangeBegan&) = default;
};

/// I/O worker to ReplicaKeeper: this rank's part of the round is in its buffer.
struct RoundRead {
  std::uint64_t exchange = 0;
  std::uint32_t round = 0;
  std::uint32_t credit = 0;
  Failure failure;

  friend bool operator==(const RoundRead&, const RoundRead&) = default;
};

/// Device to ReplicaKeeper: the parts of all members are in the buffer; a failure ends the group.
struct RoundShared {
  std::uint64_t exchange = 0;
  std::uint32_t round = 0;
  std::uint32_t credit = 0;
  Failure failure;

  friend bool operator==(const RoundShared&, const RoundShared&) = default;
};

/// I/O worker to ReplicaKeeper: what this rank keeps of the round is in its files, the credit is free.
struct RoundWritten {
  std::uint64_t exchange = 0;
  std::uint32_t round = 0;
  std::uint32_t credit = 0;
  Failure failure;

  friend bool operator==(const RoundWritten&, const RoundWritten&) = default;
};

/// I/O worker to ReplicaKeeper: every expected copy is complete and has its final name, or is not.
struct ExchangeClosed {
  std::uint64_t exchange = 0;
  Failure failure;

  friend bool operator==(const ExchangeClosed&, const ExchangeClosed&) = default;
};

/// ReplicaKeeper to ReplicaCoordinator: the rank holds the copies of its clique, or does not.
struct CopiesHeld {
  std::uint64_t sequence = 0;
  core::Rank rank{};
  Failure failure;

  friend bool operator==(const CopiesHeld&, const CopiesHeld&) = default;
};

/// ReplicaCoordinator to every ReplicaKeeper, and ReplicaKeeper to Trainer: the local save counts, or it
/// failed on all ranks.
struct LocalSaveOver {
  std::uint64_t sequence = 0;
  core::Step step{};        ///< the last decided step before the save
  std::uint64_t bytes = 0;  ///< of all ranks' own copies
  Failure failure;

  friend bool operator==(const LocalSaveOver&, const LocalSaveOver&) = default;
};

/// Trainer to ReplicaKeeper: transfer the copies of this save to the members of the clique that lack them.
/// All members are told the same.
struct RetrieveBegan {
  core::CopyName name;
  std::vector<core::CopyTransfer> transfers;

  friend bool operator==(const RetrieveBegan&, const RetrieveBegan&) = default;
};

/// ReplicaKeeper to Trainer: what this rank was to receive has arrived, or has not.
struct RetrieveOver {
  Failure failure;

  friend bool operator==(const RetrieveOver&, const RetrieveOver&) = default;
};

/// Device to Trainer: every rank holds all parameters that others have loaded, or does not.
struct StateGathered {
  Failure failure;

  friend bool operator==(const StateGathered&, const StateGathered&) = default;
};

/// Device or host to Trainer: a round in which ranks share the data they read from a checkpoint has ended.
struct LoadedShared {
  Failure failure;

  friend bool operator==(const LoadedShared&, const LoadedShared&) = default;
};

/// I/O worker to ReplicaKeeper: what the end of the save made useless is removed.
struct CopiesTidied {
  std::uint64_t sequence = 0;

  friend bool operator==(const CopiesTidied&, const CopiesTidied&) = default;
};

}  // namespace troupe::messages
