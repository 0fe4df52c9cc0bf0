#pragma once

#include <vector>

#include "messages/envelope.hpp"

namespace troupe::messages {

/// One message of every type, in the order of their tags, with every member set. golden/write_golden.py
/// lists the same values.
inline std::vector<Message> sample_messages() {
  using core::Lane, core::Rank, core::Step, core::WorldSize;
  Failure failure{true, core::Errc::peer_lost, "rank 2 died"};
  Verdict verdict{0.5, 3, {1, 2}, {2.25, -0.0}, kWishSave | kWishLeave};
  return {
      GradientReady{Step{7}, Lane{3}, 300},
      LaneEnded{Step{7}, Lane{3}},
      BucketReduced{Step{70000}, 4},
      CollectiveReady{Step{7}, 11},
      CollectiveDone{Step{7}, 11, 5000000000, {}},
      CollectiveFailed{Step{7}, 11, 12, failure},
      StepBegan{Step{-1}, 0.001},
      BackwardFinished{Step{7}, {{Lane{0}, 2.0}, {Lane{1}, 2.5}}, "parameter w has no gradient", kWishSave},
      VerdictArrived{Step{7}, verdict},
      StepDecided{Step{7}, true, "", 0.125, 1.0, verdict},
      StepCommitted{Step{7}},
      StepFailed{Step{7}, failure},
      ShardStepped{Step{7}, 4},
      ShardUpdated{Step{7}, 4},
      Published{Step{7}, 4},
      Join{Rank{1}, WorldSize{4}, 0xfedcba9876543210, "strategy=zero1"},
      PlanWanted{true},
      PlanLines{Rank{1}, {"0 reduce_scatter dp", ""}},
      Welcome{{Rank{0}, Rank{1}, Rank{200}}},
      Refused{failure},
      PeerLost{Rank{2}, failure},
      RankFailed{Rank{1}, failure},
      Fence{Rank{2}, failure},
      Leave{Rank{1}},
      Farewell{4},
      StoreSet{"gloo/0", std::string("\0\xff", 2)},
      StoreGet{9, "gloo/0"},
      StoreValue{9, "value"},
      LaneMerged{Step{7}, Lane{3}, 4},
      BucketReady{Step{7}, 4, "bias came twice"},
      SaveBegan{5, Step{7}, "{}", "{\"a\":1}", "[]"},
      BucketHeld{5, 4},
      BucketStaged{5},
      SaveAnnounced{5, Rank{1}, Step{7}, 0xfedcba9876543210, 200, "{}", "{\"a\":1}", "[]"},
      StructureWanted{0xfedcba9876543210},
      StructurePart{0xfedcba9876543210, 1, 2, "text"},
      SaveDirectoryMade{5, failure},
      SavePlanned{5, "step_00000008.tmp-1", {0, 2, 300}},
      ChunkStaged{5, 6, 1},
      ChunkWritten{5, 6, 1, failure},
      FilesDurable{5, Rank{1}, {1, 0xfedcba9876543210}, {}},
      SaveFailed{5, Rank{1}, failure},
      SaveCommitDone{5, {}},
      SaveOver{5, Step{7}, "step_00000008", 5000000000, "rank 2 differs", {}},
      StateRestored{Step{7}},
      ReplicaSeed{0xfedcba9876543210},
      CopyDirectoryMade{5, failure},
      CopySealed{5, 5000000000, failure},
      CopyReady{5, Rank{1}, Step{7}, 5000000000, {}},
      ExchangeBegan{5, {300, 5000000000}},
      RoundRead{2, 70000, 1, failure},
      RoundShared{2, 70000, 1, failure},
      RoundWritten{2, 70000, 1, failure},
      ExchangeClosed{2, failure},
      CopiesHeld{5, Rank{1}, failure},
      LocalSaveOver{5, Step{7}, 5000000000, failure},
      RetrieveBegan{{Step{8}, 0xfedcba9876543210},
                    {{Rank{1}, Rank{3}, 5000000000, {Rank{1}, Rank{5}}}, {Rank{3}, Rank{3}, 200, {}}}},
      RetrieveOver{failure},
      StateGathered{failure},
      CopiesTidied{5}};
}

inline Envelope sample_envelope(Message body) {
  return {{core::Rank{1}, Role::gradient_bucket, 4},
          {core::Rank{0}, Role::coordinator, 0},
          core::Epoch{6},
          std::move(body)};
}

}  // namespace troupe::messages
