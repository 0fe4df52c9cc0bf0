#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "actors/roles/exchange.hpp"
#include "core/checkpoint/cliques.hpp"

namespace troupe::actors {

/// Make the directory into which the rank's own copy is written. Ends in CopyDirectoryMade.
struct MakeCopyDirectory {
  std::uint64_t sequence = 0;
  core::CopyName name;
};

/// The files of the rank's own copy are complete: add its manifest and give the copy its name. Ends in
/// CopySealed.
struct SealCopy {
  std::uint64_t sequence = 0;
  core::CopyName name;
  std::string topology;  ///< JSON of a core::Value
  std::string common;    ///< JSON of a core::Value
  std::vector<std::uint64_t> hashes;
};

/// An exchange begins; sent before its first round.
struct OpenExchange {
  std::uint64_t exchange = 0;
  core::CopyName name;
  Exchange plan;
};

/// Read this rank's part of the round into the buffer. Ends in RoundRead.
struct ReadRound {
  std::uint64_t exchange = 0;
  std::uint32_t round = 0;
  std::uint32_t credit = 0;
};

/// Gather the parts of all members. Ends in RoundShared.
struct ShareRound {
  std::uint64_t exchange = 0;
  std::uint32_t round = 0;
  std::uint32_t credit = 0;
};

/// Write what this rank keeps of the round. Ends in RoundWritten.
struct WriteRound {
  std::uint64_t exchange = 0;
  std::uint32_t round = 0;
  std::uint32_t credit = 0;
};

/// No round is left: give the copies that arrived their names if they are complete. Ends in ExchangeClosed.
struct CloseExchange {
  std::uint64_t exchange = 0;
};

/// The save counts: it and a few before it are kept here, all others are removed. Ends in CopiesTidied.
struct TidyCopies {
  std::uint64_t sequence = 0;
  core::CopyName name;
};

/// The save failed: whatever this rank has of it is removed. Ends in CopiesTidied.
struct DiscardCopies {
  std::uint64_t sequence = 0;
  core::CopyName name;
};

/// What ReplicaKeeper asks of the replica plane.
using ReplicaWork = std::variant<MakeCopyDirectory, SealCopy, OpenExchange, ReadRound, ShareRound, WriteRound,
                                 CloseExchange, TidyCopies, DiscardCopies>;

}  // namespace troupe::actors
