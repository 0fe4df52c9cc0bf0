#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "core/experts/exchange.hpp"
#include "core/ids.hpp"
#include "messages/experts.hpp"
#include "messages/failure.hpp"

namespace troupe::actors {

/// ExpertGroup: all ranks of its group tell each other these counts. Ends in CountsKnown.
struct GatherCounts {
  std::uint32_t layer = 0;
  std::uint64_t exchange = 0;
  core::Lane lane{-1};
  std::vector<std::int64_t> counts;
};

/// ExpertGroup: tells the trainer which rows will come here.
struct HandOutPlan {
  std::uint32_t layer = 0;
  std::uint64_t exchange = 0;
  core::ExpertExchange plan;
};

/// ExpertGroup: rows of the exchange move between the memories that the trainer names. Ends in RowsArrived.
struct MoveRows {
  std::uint32_t layer = 0;
  std::uint64_t exchange = 0;
  core::Step step{};
  messages::RowsGo go = messages::RowsGo::out;
};

/// ExpertGroup: the trainer's call fails, and nothing moves.
struct RefuseRows {
  std::uint32_t layer = 0;
  std::uint64_t exchange = 0;
  messages::Failure failure;
};

/// ExpertGroup: what checkpoints keep of the layer, and routers read, is this from now on.
struct KeepExpertState {
  std::uint32_t layer = 0;
  core::Step step{};                  ///< that was decided; -1: it was restored
  bool moved = false;                 ///< the step has moved the biases
  std::vector<float> bias;            ///< empty: the layer has none
  std::vector<std::int64_t> chosen;   ///< since the run began
  std::vector<std::int64_t> dropped;  ///< as above
};

/// What ExpertGroups ask of the expert plane, which carries it out on the trainer's thread.
using ExpertWork = std::variant<GatherCounts, HandOutPlan, MoveRows, RefuseRows, KeepExpertState>;

}  // namespace troupe::actors
