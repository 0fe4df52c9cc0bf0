#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct MessageArrived {
  core::Rank from{};
  std::vector<std::byte> message;
};
/// At rank 0: the rank is connected. Elsewhere: rank 0 is connected, or a rank that was lost is back.
struct RankJoined {
  core::Rank rank{};
};
/// The rank closed its network in good order; all its messages arrived before.
struct RankLeft {
  core::Rank rank{};
};
/// The rank is gone or cannot be reached. Messages recently sent to it may not have arrived.
struct RankLost {
  core::Rank rank{};
  core::Error why;
};
using NetworkEvent = std::variant<MessageArrived, RankJoined, RankLeft, RankLost>;

/// What the roles must be told: a rank is gone, normally or not. They know who has finished its part.
inline std::optional<RankLost> end_of_rank(const NetworkEvent& event) {
  if (const auto* lost = std::get_if<RankLost>(&event)) return *lost;
  const auto* left = std::get_if<RankLeft>(&event);
  if (left == nullptr) return std::nullopt;
  return RankLost{
      left->rank,
      {core::Errc::peer_lost,
       fmt::format("rank {} left before the job had ended; see its log for why", left->rank.value)}};
}

/// Called with one event at a time, in order, by the network's own thread (in simulation by the event loop).
/// It must not block; it may send.
using NetworkHandler = std::function<void(NetworkEvent)>;

/// The control plane as one rank sees it: messages of at most kMaxControlMessageBytes to any rank of the job,
/// including itself. NW-1: messages from one rank to another arrive at most once and in the order of sending,
/// and every one arrives unless the sender or the receiver is told that the other is gone.
class Network {
 public:
  virtual ~Network() = default;

  virtual core::Rank rank() const = 0;
  virtual core::WorldSize world_size() const = 0;

  /// From any thread; never blocks. A rank that has not joined yet gets the message when it joins.
  /// Errc::invalid_argument for invalid input, Errc::peer_lost if the rank is gone, Errc::unavailable if too
  /// much is already waiting for it.
  virtual core::Result<void> send(core::Rank to, std::span<const std::byte> message) = 0;

  /// Says farewell to all, after everything that was sent, and waits a bounded time for the answers (in
  /// simulation: not at all). Destroying it without this looks like a death to the others.
  virtual core::Result<void> close() = 0;
};

inline constexpr std::size_t kMaxControlMessageBytes = (std::size_t{1} << 20) - 128;

}  // namespace troupe::actors
