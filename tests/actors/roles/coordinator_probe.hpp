#pragma once

#include <string_view>
#include <vector>

#include "actors/roles/checkpoint_coordinator.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/hash.hpp"
#include "tests/actors/planes/checkpoint/checkpoint_work.hpp"
#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {

inline const messages::Failure kNoSpace{true, core::Errc::io, "no space left"};

/// Half of "a", by rows, and all of "b".
inline core::SaveStructure half(int rank) {
  core::SaveStructure structure;
  structure.tensors = {{"a", core::DType::f32, {8}}, {"b", core::DType::f32, {4}}};
  structure.pieces = {{0, {{4 * rank}, {4}}}, {1, core::Box::whole({4})}};
  return structure;
}

inline std::uint64_t hash_of(const core::SaveStructure& structure) {
  return core::hash64(core::to_text(structure));
}

inline messages::SaveAnnounced announced(int rank, std::uint64_t sequence,
                                         const core::SaveStructure& structure, std::int64_t step = 4) {
  const std::string common = *core::value_text(core::Value::Map{{"step", step + 1}});
  messages::SaveAnnounced message{
      sequence, core::Rank{rank}, {step}, hash_of(structure), core::hash64(common), "", "", "[]"};
  if (rank != 0) return message;
  message.common = common;
  message.topology = *core::value_text(core::Value::Map{{"world", std::int64_t{2}}});
  return message;
}

inline messages::StructurePart whole(const core::SaveStructure& structure) {
  return {hash_of(structure), 0, 1, core::to_text(structure)};
}

inline CheckpointCoordinatorConfig config_of(int ranks, core::WhenBusy when_busy = core::WhenBusy::queue) {
  return {{ranks}, std::chrono::seconds(90), when_busy, 17};
}

/// A coordinator of two ranks.
struct Coordinator {
  explicit Coordinator(CheckpointCoordinatorConfig config = config_of(2)) : machine(config) {}
  CheckpointCoordinatorMachine machine;
  MachineProbe probe{machine};

  std::vector<Effect> say(const messages::Message& message) { return probe.say(message); }
  std::vector<Effect> timer() { return probe.timer(0); }

  /// Both announce, and are known.
  std::vector<Effect> gather(std::uint64_t sequence) {
    std::vector<Effect> effects;
    for (int rank = 0; rank < 2; ++rank) effects += say(announced(rank, sequence, half(rank)));
    for (const auto& wanted : sent<messages::StructureWanted>(effects)) {
      for (int rank = 0; rank < 2; ++rank) {
        if (wanted.structure_hash == hash_of(half(rank))) effects += say(whole(half(rank)));
      }
    }
    return effects;
  }
  std::vector<Effect> drive_to(std::string_view state, std::uint64_t sequence = 1) {
    if (state == "idle") return {};
    if (state == "gathering") return say(announced(0, sequence, half(0)));
    auto effects = gather(sequence);
    if (state == "preparing") return effects;
    effects += say(messages::SaveDirectoryMade{sequence, {}});
    if (state == "writing") return effects;
    // Two shards for the one who has the smaller load, one for the other.
    const auto plans = sent<messages::SavePlanned>(effects);
    for (int rank = 0; rank < 2; ++rank) {
      const auto shards = plans[static_cast<std::size_t>(rank)].pieces.size();
      effects += say(messages::FilesDurable{sequence, {rank}, std::vector<std::uint64_t>(shards, 5), {}});
    }
    return effects;
  }
};

}  // namespace troupe::actors
