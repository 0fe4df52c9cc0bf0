#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>
#include <variant>

#include "messages/envelope.hpp"

namespace troupe::messages::wire {

/// A kind of message between processes: only append, and never reuse a tag, including kRetiredTags and 16.
struct WireKind {
  std::string_view name;
  std::uint8_t tag = 0;
  Role from{};  ///< the one role that sends it to another process
  Role to{};    ///< the one role that receives it
};

/// In the order of WireMessage.
inline constexpr WireKind kWireKinds[] = {
    {"Join", 15, Role::rank_supervisor, Role::coordinator},
    {"PlanLines", 17, Role::rank_supervisor, Role::coordinator},
    {"Welcome", 18, Role::coordinator, Role::rank_supervisor},
    {"Refused", 19, Role::coordinator, Role::rank_supervisor},
    {"RankFailed", 21, Role::rank_supervisor, Role::coordinator},
    {"Fence", 22, Role::coordinator, Role::rank_supervisor},
    {"Leave", 23, Role::rank_supervisor, Role::coordinator},
    {"Farewell", 24, Role::coordinator, Role::rank_supervisor},
    {"StoreSet", 25, Role::trainer, Role::coordinator},
    {"StoreGet", 26, Role::trainer, Role::coordinator},
    {"StoreValue", 27, Role::coordinator, Role::trainer},
    {"SaveAnnounced", 33, Role::checkpoint_writer, Role::checkpoint_coordinator},
    {"StructureWanted", 34, Role::checkpoint_coordinator, Role::checkpoint_writer},
    {"StructurePart", 35, Role::checkpoint_writer, Role::checkpoint_coordinator},
    {"SavePlanned", 37, Role::checkpoint_coordinator, Role::checkpoint_writer},
    {"FilesDurable", 40, Role::checkpoint_writer, Role::checkpoint_coordinator},
    {"SaveFailed", 41, Role::checkpoint_writer, Role::checkpoint_coordinator},
    {"SaveOver", 43, Role::checkpoint_coordinator, Role::checkpoint_writer},
    {"CopyReady", 48, Role::replica_keeper, Role::replica_coordinator},
    {"ExchangeBegan", 49, Role::replica_coordinator, Role::replica_keeper},
    {"CopiesHeld", 54, Role::replica_keeper, Role::replica_coordinator},
    {"LocalSaveOver", 55, Role::replica_coordinator, Role::replica_keeper},
    {"PlanPartWanted", 60, Role::coordinator, Role::rank_supervisor},
    {"PlanHashes", 61, Role::rank_supervisor, Role::coordinator},
    {"StepAccount", 62, Role::rank_supervisor, Role::coordinator},
    {"StepReason", 63, Role::coordinator, Role::rank_supervisor},
    {"TrainerCalls", 64, Role::trainer, Role::coordinator},
    {"WaitNote", 65, Role::coordinator, Role::trainer},
    {"StepsTimed", 66, Role::trainer, Role::coordinator},
};
static_assert(std::size(kWireKinds) == std::variant_size_v<WireMessage>);

/// In the order of Completion.
inline constexpr std::string_view kCompletionNames[] = {
    "GradientReady",    "LaneEnded",         "BucketReduced",     "CollectiveReady", "CollectiveDone",
    "CollectiveFailed", "StepBegan",         "BackwardFinished",  "VerdictArrived",  "StepDecided",
    "StepCommitted",    "StepFailed",        "ShardStepped",      "ShardUpdated",    "Published",
    "PeerLost",         "LaneMerged",        "BucketReady",       "SaveBegan",       "BucketHeld",
    "BucketStaged",     "SaveDirectoryMade", "ChunkStaged",       "ChunkWritten",    "SaveCommitDone",
    "StateRestored",    "ReplicaSeed",       "CopyDirectoryMade", "CopySealed",      "RoundRead",
    "RoundShared",      "RoundWritten",      "ExchangeClosed",    "RetrieveBegan",   "RetrieveOver",
    "StateGathered",    "CopiesTidied",      "UnitWanted",        "UnitGathered",    "LoadedShared",
    "OrderLearned",     "RowsCounted",       "CountsKnown",       "RowsWanted",      "RowsArrived",
    "LoadCounted",      "LoadSummed",        "ExpertsRestored",
};
static_assert(std::size(kCompletionNames) == std::variant_size_v<Completion>);

/// The tags that the first completions once had on the wire, in the order of Completion.
inline constexpr std::uint8_t kRetiredTags[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                                13, 14, 20, 28, 29, 30, 31, 32, 36, 38, 39, 42, 44,
                                                45, 46, 47, 50, 51, 52, 53, 56, 57, 58, 59};
static_assert(std::size(kRetiredTags) <= std::size(kCompletionNames));

/// The name of the completion that had this tag; empty if there was none.
constexpr std::string_view retired_name(std::uint64_t tag) {
  for (std::size_t i = 0; i < std::size(kRetiredTags); ++i) {
    if (kRetiredTags[i] == tag) return kCompletionNames[i];
  }
  return {};
}

}  // namespace troupe::messages::wire
