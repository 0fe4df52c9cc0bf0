#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/session/options.hpp"
#include "actors/session/trainer_inbox.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "gpu/buffer.hpp"
#include "gpu/collective/flight_recorder.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// What the parts of a session share. The session owns all of it and outlives its parts.
struct SessionContext {
  RankWorld& world;
  const SessionOptions& options;
  const TrainingPlan& plan;
  TrainerInbox& inbox;
  gpu::Rendezvous& rendezvous;
  DataPlane& data;
  const RankState& state;                   ///< what this rank could save
  std::span<const gpu::BufferView> memory;  ///< of the pieces of `state`

  core::Rank rank() const { return world.rank(); }
  bool is_first_rank() const { return world.rank().value == 0; }
  std::uint32_t bucket_count() const { return static_cast<std::uint32_t>(plan.buckets.size()); }
  core::IndexRange<core::BucketIndex> buckets() const { return plan.buckets.indices(); }

  /// How long a save may hold up updates: it ends before the collectives of other ranks, which wait for this
  /// one, count as hung.
  std::chrono::nanoseconds hold_deadline() const { return options.step_deadline * 2 / 3; }

  /// To a role of this rank, in the trainer's name.
  void post(messages::Role role, std::uint32_t index, messages::Message message) const {
    world.post(
        {{rank(), messages::Role::trainer, 0}, {rank(), role, index}, world.epoch(), std::move(message)});
  }

  /// The same for what leads to launches at once: the trainer's thread may run the role.
  void post_and_run(messages::Role role, std::uint32_t index, messages::Message message) const {
    world.post_and_run(
        {{rank(), messages::Role::trainer, 0}, {rank(), role, index}, world.epoch(), std::move(message)});
  }

  /// To the Coordinator.
  void tell(messages::Message message) const {
    const messages::Address coordinator{core::Rank{0}, messages::Role::coordinator, 0};
    world.post({{rank(), messages::Role::trainer, 0}, coordinator, world.epoch(), std::move(message)});
  }

  /// What the trainer is in is recorded, and in which step.
  void enter(gpu::FlightPhase phase, core::Step step = {-1}) const {
    if (const auto recorder = world.recorder()) recorder->enter(phase, step);
  }

  /// Every rank says its word; all get what rank 0 answers to the words, which are in the order of ranks.
  using Answer = std::function<std::string(const std::vector<std::string>& words)>;
  core::Result<std::string> ask(const std::string& topic, const std::string& word,
                                const Answer& answer) const {
    const auto deadline = options.checkpoint.deadline;
    TRY(rendezvous.set(fmt::format("{}/{}", topic, rank().value), word));
    if (is_first_rank()) {
      std::vector<std::string> words;
      for (std::int32_t other = 0; other < world.world_size().value; ++other)
        words.push_back(TRY(rendezvous.get(fmt::format("{}/{}", topic, other), deadline)));
      TRY(rendezvous.set(topic + "/answer", answer(words)));
    }
    return rendezvous.get(topic + "/answer", deadline);
  }

  /// Waits until all ranks have read what was set under keys that begin with this one, and may end: without
  /// it a rank that ends would be the others' Error. By all ranks alike.
  void end_reading(const std::string& prefix) const {
    constexpr std::chrono::seconds kPatience{5};
    const auto all_here = [&]() -> core::Result<void> {
      const auto key = [&](std::int32_t of) { return fmt::format("{}read/{}", prefix, of); };
      TRY(rendezvous.set(key(rank().value), {}));
      for (std::int32_t other = 0; is_first_rank() && other < world.world_size().value; ++other)
        TRY(rendezvous.get(key(other), kPatience));
      if (is_first_rank()) TRY(rendezvous.set(prefix + "read", {}));
      TRY(rendezvous.get(prefix + "read", kPatience));
      return {};
    };
    core::disregard(all_here(), "what was read is an Error of its own");
  }

  /// This rank gives up, and every other rank is told why. Returns the job's first failure, which is `reason`
  /// unless another came before it.
  core::Error abandon(core::Error reason) const {
    post(messages::Role::rank_supervisor, 0, messages::RankFailed{rank(), messages::failure_of(reason)});
    const auto told = inbox.wait_farewell(std::chrono::seconds(5));
    return told || told.error().code == core::Errc::timeout ? std::move(reason) : told.error();
  }
};

}  // namespace troupe::actors
