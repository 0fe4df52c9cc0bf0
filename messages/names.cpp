#include <fmt/format.h>

#include <iterator>

#include "messages/envelope.hpp"

namespace troupe::messages {

std::string_view name_of(Role role) noexcept {
  switch (role) {
    case Role::trainer:
      return "trainer";
    case Role::rank_supervisor:
      return "rank_supervisor";
    case Role::conductor:
      return "conductor";
    case Role::gradient_bucket:
      return "gradient_bucket";
    case Role::parameter_shard:
      return "parameter_shard";
    case Role::coordinator:
      return "coordinator";
    case Role::checkpoint_writer:
      return "checkpoint_writer";
    case Role::checkpoint_coordinator:
      return "checkpoint_coordinator";
    case Role::local_writer:
      return "local_writer";
    case Role::replica_keeper:
      return "replica_keeper";
    case Role::replica_coordinator:
      return "replica_coordinator";
  }
  return "unknown";
}

std::string to_string(const Address& address) {
  bool numbered = address.role == Role::gradient_bucket || address.role == Role::parameter_shard;
  return numbered ? fmt::format("{} {} @ rank {}", name_of(address.role), address.index, address.rank.value)
                  : fmt::format("{} @ rank {}", name_of(address.role), address.rank.value);
}

std::string_view name_of(const Message& message) noexcept {
  static constexpr std::string_view kNames[] = {"GradientReady",
                                                "LaneEnded",
                                                "BucketReduced",
                                                "CollectiveReady",
                                                "CollectiveDone",
                                                "CollectiveFailed",
                                                "StepBegan",
                                                "BackwardFinished",
                                                "VerdictArrived",
                                                "StepDecided",
                                                "StepCommitted",
                                                "StepFailed",
                                                "ShardStepped",
                                                "ShardUpdated",
                                                "Published",
                                                "Join",
                                                "PlanWanted",
                                                "PlanLines",
                                                "Welcome",
                                                "Refused",
                                                "PeerLost",
                                                "RankFailed",
                                                "Fence",
                                                "Leave",
                                                "Farewell",
                                                "StoreSet",
                                                "StoreGet",
                                                "StoreValue",
                                                "LaneMerged",
                                                "BucketReady",
                                                "SaveBegan",
                                                "BucketHeld",
                                                "BucketStaged",
                                                "SaveAnnounced",
                                                "StructureWanted",
                                                "StructurePart",
                                                "SaveDirectoryMade",
                                                "SavePlanned",
                                                "ChunkStaged",
                                                "ChunkWritten",
                                                "FilesDurable",
                                                "SaveFailed",
                                                "SaveCommitDone",
                                                "SaveOver",
                                                "StateRestored",
                                                "ReplicaSeed",
                                                "CopyDirectoryMade",
                                                "CopySealed",
                                                "CopyReady",
                                                "ExchangeBegan",
                                                "RoundRead",
                                                "RoundShared",
                                                "RoundWritten",
                                                "ExchangeClosed",
                                                "CopiesHeld",
                                                "LocalSaveOver",
                                                "RetrieveBegan",
                                                "RetrieveOver",
                                                "StateGathered",
                                                "CopiesTidied"};
  static_assert(std::size(kNames) == std::variant_size_v<Message>);
  return kNames[message.index()];
}

}  // namespace troupe::messages
