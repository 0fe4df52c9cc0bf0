#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "actors/roles/checkpoint_work.hpp"
#include "actors/roles/expert_work.hpp"
#include "actors/roles/replica_work.hpp"
#include "core/ids.hpp"
#include "messages/failure.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// GradientBucket: this lane's gradients of the bucket are complete. Adds them to the partial sums the rank
/// holds, and after its last lane brings them into the form that the collective reads; ends in LaneMerged to
/// the trainer unless `last`. Where each round reduces gradients, every lane is separate, and LaneMerged
/// follows its reduction. Lane -1: there is none in this round.
struct PrepareBucket {
  core::Step step{};
  core::BucketIndex bucket{};
  core::Lane lane{};
  bool last = false;
};

/// What a launch means for gradients that are also summed over a group beyond the data-parallel axes.
enum class FinalSum : std::uint8_t {
  none,    ///< nothing
  awaits,  ///< it is the last reduction before that sum
  is,      ///< it is that sum
};

/// Conductor: enqueue entry `entry` of the program. Ends in CollectiveDone to the Conductor.
struct LaunchCollective {
  core::Step step{};
  core::PlanEntryIndex entry{};
  std::uint64_t sequence = 0;
  /// For checks that compare ranks: the communicator it belongs to, and what its members must see alike.
  std::uint64_t communicator = 0;
  std::uint64_t alike = 0;
  /// For gradients, how far their bucket has come.
  FinalSum final_sum = FinalSum::none;
  core::BucketIndex bucket{};
};

/// RankSupervisor: put norm, NaN/Inf count, losses and refusals of this rank into the verdict's input. The
/// facts of the verdict come as VerdictArrived once its collective has ended. `alike` is a hash of what all
/// ranks must have alike.
struct PrepareVerdict {
  core::Step step{};
  std::vector<messages::LaneLoss> losses;
  bool refuse = false;
  std::uint32_t wishes = 0;  ///< bits of Wish
  std::uint64_t alike = 0;
};

/// ParameterShard: step the optimizer on this rank's shard of the bucket and clear the bucket's gradients; if
/// `commit` is false, only clear them, also in memory that buckets share. Ends in ShardStepped.
struct StepShard {
  core::Step step{};
  core::BucketIndex bucket{};
  bool commit = false;
  double learning_rate = 0;
  double gradient_factor = 1;  ///< multiplies every gradient
};

/// The part of a decided step that a bucket's shard carries out.
inline StepShard step_of_shard(const messages::StepDecided& decided, core::BucketIndex bucket) {
  return {decided.step, bucket, decided.commit, decided.learning_rate,
          decided.clip_factor / decided.loss_scale * decided.verdict.gradient_factor};
}

/// RankSupervisor: every running and later collective of this rank ends in this error.
struct AbortCollectives {
  messages::Failure reason;
};

/// What machines ask of the data plane of a step.
using StepWork = std::variant<PrepareBucket, LaunchCollective, PrepareVerdict, StepShard>;

/// What machines ask of the planes; the session's WorkRouter brings each kind to the plane that owns it. No
/// work waits: the answer is a message.
using Work = std::variant<StepWork, AbortCollectives, CheckpointWork, ReplicaWork, ExpertWork>;

/// The work of this kind, a single kind or all that goes to one plane; null when it is another kind.
template <class Kind>
const Kind* work_if(const Work& work) {
  auto same = [](const auto& found) -> const Kind* {
    if constexpr (std::is_same_v<std::decay_t<decltype(found)>, Kind>) {
      return &found;
    } else {
      return nullptr;
    }
  };
  return std::visit(
      [&](const auto& part) -> const Kind* {
        if (const auto* found = same(part)) return found;
        if constexpr (requires { part.valueless_by_exception(); }) {
          return std::visit(same, part);
        } else {
          return nullptr;
        }
      },
      work);
}

}  // namespace troupe::actors
