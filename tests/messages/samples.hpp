#pragma once

#include <vector>

#include "messages/envelope.hpp"

namespace troupe::messages {

/// One message of every type that travels, in the order of WireMessage, with every member set.
/// golden/write_golden.py lists the same values.
inline std::vector<WireMessage> sample_messages() {
  using core::Rank, core::Step, core::WorldSize;
  Failure failure{true, core::Errc::peer_lost, "rank 2 died", {core::Rank{2}, core::Rank{200}}};
  return {
      Join{Rank{1}, WorldSize{4}, 0xfedcba9876543210, "strategy=zero1", 3},
      PlanLines{Rank{1}, {"0 reduce_scatter dp", ""}},
      Welcome{{Rank{0}, Rank{1}, Rank{200}}},
      Refused{failure},
      RankFailed{Rank{1}, failure},
      Fence{Rank{2}, failure},
      Leave{Rank{1}},
      Farewell{4},
      StoreSet{"gloo/0", std::string("\0\xff", 2)},
      StoreGet{9, "gloo/0"},
      StoreValue{9, "value"},
      SaveAnnounced{5, Rank{1}, Step{7}, 0xfedcba9876543210, 200, "{}", "{\"a\":1}", "[]"},
      StructureWanted{0xfedcba9876543210, 1},
      StructurePart{0xfedcba9876543210, 1, 2, "text"},
      SavePlanned{5, "step_00000008.tmp-1", {0, 2, 300}},
      FilesDurable{5, Rank{1}, {1, 0xfedcba9876543210}, {}},
      SaveFailed{5, Rank{1}, failure},
      SaveOver{5, Step{7}, "step_00000008", 5000000000, "rank 2 differs", {}},
      CopyReady{5, Rank{1}, Step{7}, 5000000000, {}},
      ExchangeBegan{5, {300, 5000000000}},
      CopiesHeld{5, Rank{1}, failure},
      LocalSaveOver{5, Step{7}, 5000000000, failure},
      PlanPartWanted{65536, 256},
      PlanHashes{Rank{1}, 65536, 256, {0xfedcba9876543210, 3}},
      StepAccount{Rank{1}, Step{7}, "no data", {"learning rate: 0.1"}, {8, 1}},
      StepReason{Step{7}, "refused by rank 1: no data"},
      TrainerCalls{Rank{1}, {8, 1, 0, 0, 0, 1}, true, Call::leave, 1},
      WaitNote{"rank 1 waits in leave()"},
      StepsTimed{Rank{1}, 300, 2, 5000000000, 1000000000, 11000000000},
  };
}

inline WireEnvelope sample_envelope(WireMessage body) {
  return {{core::Rank{1}, Role::gradient_bucket, 4},
          {core::Rank{0}, Role::coordinator, 0},
          core::Epoch{6},
          std::move(body)};
}

}  // namespace troupe::messages
