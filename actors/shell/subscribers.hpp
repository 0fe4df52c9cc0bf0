#pragma once

// For trainers with their own CAF actors, which run in the rank's actor system and are told what the rank
// decides.

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/behavior.hpp>
#include <cstdint>
#include <string>

#include "actors/shell/process_world.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// What subscribers are told: each event once, as a CAF message of this type.
struct RankEvent {
  enum class Kind : std::uint8_t {
    bucket_reduced,  ///< the gradients of `bucket` are summed over the ranks
    step_decided,    ///< `committed` says whether the update is applied
    step_committed,  ///< every shard of this rank has been updated; not of a refused step
    failed,          ///< no further step of this epoch will be decided; `reason` says why
  };
  Kind kind = Kind::bucket_reduced;
  core::Step step{};
  core::BucketIndex bucket{};
  bool committed = false;
  std::string reason;
};

/// The subscriber lives until the session ends. If it ends before that with an error, or throws, the rank
/// fails and all are told that it did. Errc::invalid_argument before a session has joined.
core::Result<void> subscribe(ProcessWorld& world, caf::actor subscriber);
core::Result<caf::actor_system*> actor_system(ProcessWorld& world);

}  // namespace troupe::actors

#ifdef CAF_BEGIN_TYPE_ID_BLOCK  // from CAF 0.18 on
CAF_BEGIN_TYPE_ID_BLOCK(troupe_events, first_custom_type_id + 1000)
CAF_ADD_TYPE_ID(troupe_events, (troupe::actors::RankEvent))
CAF_END_TYPE_ID_BLOCK(troupe_events)
#endif
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::RankEvent)
