#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>

#include "actors/planes/step/rank_tensors.hpp"
#include "actors/shell/tracer.hpp"
#include "core/list.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

struct DataPlaneOptions {
  core::Rank rank{};
  core::Epoch epoch{};
  std::chrono::nanoseconds collective_deadline = std::chrono::seconds(60);
  Tracer* tracer = nullptr;  ///< may be null
  /// The back-end of the groups to come; what they carry is in memory of theirs. Null: all memory is the
  /// device's.
  gpu::CollectiveBackend* collectives = nullptr;
  std::function<void(messages::Envelope)> post;  ///< from any thread; must not block
  /// Called when the entry's collective has been posted; from any thread; must not block. May be empty.
  std::function<void(core::Step, core::PlanEntryIndex)> launched;
  /// What is executed instead of the plan's own program for this rank.
  std::optional<core::Program> program{};
};

/// The streams on which a step's work is enqueued, and the events that order it (core::Mark). All are thread
/// safe, and calls for one bucket come from one machine at a time.
struct StepStreams {
  struct Bucket {
    gpu::Event prepared;   ///< on "accumulate": the rank's sums are ready for the collective to read
    gpu::Event exchanged;  ///< on "communication": the last collective of gradients has delivered its data
    gpu::Event reduced;    ///< on "update": the sums of what it delivered are complete
    gpu::Event cleared;    ///< on "update": full gradients of its own are zeros, for the next lane
    gpu::Event updated;    ///< on "update": the optimizer has stepped this rank's shard
  };

  static core::Result<StepStreams> create(gpu::Device& device, const RankProgram& program,
                                          std::size_t bucket_count);

  gpu::Stream accumulate;
  gpu::Stream communication;
  gpu::Stream update;
  core::List<core::BucketIndex, Bucket> buckets;
  core::List<int, gpu::Event> released;  ///< by slot of parameters: the trainer has read them, on "compute"
  core::List<int, gpu::Event> cleared;   ///< as Bucket::cleared, by slot of the pool of gradients
  std::array<gpu::Event, Arena::kScratchCredits> staged;  ///< on "update": the exchange's bytes were read
  gpu::Event measured;
};

/// What the parts of a data plane share.
struct StepContext {
  gpu::Device& device;
  DataPlaneOptions options;
  RankTensors tensors;
  StepStreams streams;

  /// To a role of this rank. From any thread.
  void say(messages::Role role, std::uint32_t index, messages::Message message) const;
};

}  // namespace troupe::actors
