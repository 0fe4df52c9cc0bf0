#pragma once

#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/ids.hpp"
#include "messages/address.hpp"
#include "messages/calls.hpp"
#include "messages/checkpoint.hpp"
#include "messages/collectives.hpp"
#include "messages/experts.hpp"
#include "messages/gradients.hpp"
#include "messages/membership.hpp"
#include "messages/parameters.hpp"
#include "messages/replicas.hpp"
#include "messages/step.hpp"
#include "messages/store.hpp"

namespace troupe::messages {

/// The messages between processes. `messages/wire/kinds.hpp` has a line for each, in the same order: its tag,
/// and its sending and receiving roles.
using WireMessage =
    std::variant<Join, PlanLines, Welcome, Refused, RankFailed, Fence, Leave, Farewell, StoreSet, StoreGet,
                 StoreValue, SaveAnnounced, StructureWanted, StructurePart, SavePlanned, FilesDurable,
                 SaveFailed, SaveOver, CopyReady, ExchangeBegan, CopiesHeld, LocalSaveOver, PlanPartWanted,
                 PlanHashes, StepAccount, StepReason, TrainerCalls, WaitNote, StepsTimed>;

/// The messages that only this process may send to itself: completions, and what a rank's own roles tell each
/// other. They have no wire format, so no peer can send them.
using Completion =
    std::variant<GradientReady, LaneEnded, BucketReduced, CollectiveReady, CollectiveDone, CollectiveFailed,
                 StepBegan, BackwardFinished, VerdictArrived, StepDecided, StepCommitted, StepFailed,
                 ShardStepped, ShardUpdated, Published, PeerLost, LaneMerged, BucketReady, SaveBegan,
                 BucketHeld, BucketStaged, SaveDirectoryMade, ChunkStaged, ChunkWritten, SaveCommitDone,
                 StateRestored, ReplicaSeed, CopyDirectoryMade, CopySealed, RoundRead, RoundShared,
                 RoundWritten, ExchangeClosed, RetrieveBegan, RetrieveOver, StateGathered, CopiesTidied,
                 UnitWanted, UnitGathered, LoadedShared, OrderLearned, RowsCounted, CountsKnown, RowsWanted,
                 RowsArrived, LoadCounted, LoadSummed, ExpertsRestored>;

template <class... Left, class... Right>
std::variant<Left..., Right...> either_of(std::variant<Left...>, std::variant<Right...>);
using AnyMessage = decltype(either_of(std::declval<WireMessage>(), std::declval<Completion>()));

template <class Kind, class Variant>
inline constexpr bool kIsKindOf = false;
template <class Kind, class... Kinds>
inline constexpr bool kIsKindOf<Kind, std::variant<Kinds...>> = (std::is_same_v<Kind, Kinds> || ...);

/// All messages between actors of one process. The code that copies, compares and destroys a message is
/// compiled once, not in every file that passes messages on.
struct Message : AnyMessage {
  Message() noexcept;
  template <class Kind>
  requires kIsKindOf<std::remove_cvref_t<Kind>, AnyMessage> Message(
      Kind&& kind)  // NOLINT: a message is any of its kinds
      : AnyMessage(std::in_place_type<std::remove_cvref_t<Kind>>, std::forward<Kind>(kind)) {}
  Message(const Message& other);
  Message(Message&& other) noexcept;
  Message& operator=(const Message& other);
  Message& operator=(Message&& other) noexcept;
  ~Message();

  friend bool operator==(const Message& left, const Message& right);
};

/// "GradientReady", as in dumps, traces and logs.
std::string_view name_of(const Message& message) noexcept;

/// A message in transit. `epoch` is the membership in which it was sent: a receiver in a newer one ignores
/// it.
struct Envelope {
  Address from;
  Address to;
  core::Epoch epoch{};
  Message body;

  friend bool operator==(const Envelope& left, const Envelope& right);
};

/// A message in transit between processes.
struct WireEnvelope {
  Address from;
  Address to;
  core::Epoch epoch{};
  WireMessage body;

  friend bool operator==(const WireEnvelope&, const WireEnvelope&) = default;
};

}  // namespace troupe::messages
