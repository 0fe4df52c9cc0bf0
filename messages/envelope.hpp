#pragma once

#include <string_view>
#include <variant>

#include "core/ids.hpp"
#include "messages/address.hpp"
#include "messages/checkpoint.hpp"
#include "messages/collectives.hpp"
#include "messages/gradients.hpp"
#include "messages/membership.hpp"
#include "messages/parameters.hpp"
#include "messages/replicas.hpp"
#include "messages/step.hpp"
#include "messages/store.hpp"

namespace troupe::messages {

/// Everything that actors say to each other. A type's place is its tag on the wire: only append.
using Message =
    std::variant<GradientReady, LaneEnded, BucketReduced, CollectiveReady, CollectiveDone, CollectiveFailed,
                 StepBegan, BackwardFinished, VerdictArrived, StepDecided, StepCommitted, StepFailed,
                 ShardStepped, ShardUpdated, Published, Join, PlanWanted, PlanLines, Welcome, Refused,
                 PeerLost, RankFailed, Fence, Leave, Farewell, StoreSet, StoreGet, StoreValue, LaneMerged,
                 BucketReady, SaveBegan, BucketHeld, BucketStaged, SaveAnnounced, StructureWanted,
                 StructurePart, SaveDirectoryMade, SavePlanned, ChunkStaged, ChunkWritten, FilesDurable,
                 SaveFailed, SaveCommitDone, SaveOver, StateRestored, ReplicaSeed, CopyDirectoryMade,
                 CopySealed, CopyReady, ExchangeBegan, RoundRead, RoundShared, RoundWritten, ExchangeClosed,
                 CopiesHeld, LocalSaveOver, RetrieveBegan, RetrieveOver, StateGathered, CopiesTidied>;

/// "GradientReady", as in dumps, traces and logs.
std::string_view name_of(const Message& message) noexcept;

/// A message on its way. `epoch` is the membership in which it was said: a receiver of a newer one does not
/// obey it.
struct Envelope {
  Address from;
  Address to;
  core::Epoch epoch{};
  Message body;

  friend bool operator==(const Envelope&, const Envelope&) = default;
};

}  // namespace troupe::messages
