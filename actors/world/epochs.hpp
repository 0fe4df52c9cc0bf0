#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/world/environment.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

// What a launcher and the processes that it keeps over a failure tell each other, on one host: each file has
// one writer, and is replaced as a whole.

/// The process that has a rank: a process is known by its slot, which it keeps, and is on this node.
struct Seat {
  int slot = 0;
  int node = 0;

  friend bool operator==(const Seat&, const Seat&) = default;
};

/// From the launcher to all: the epoch that is to be formed, where its rank 0 listens, and whose ranks the
/// processes are.
struct NextEpoch {
  core::Epoch epoch{};
  std::string control_host;  ///< without brackets
  std::uint16_t control_port = 0;
  std::vector<Seat> seats;  ///< by rank

  friend bool operator==(const NextEpoch&, const NextEpoch&) = default;
};
core::Result<void> announce_epoch(const std::filesystem::path& file, const NextEpoch& next);
/// Empty if there is no such file, or it cannot be parsed.
std::optional<NextEpoch> announced(const std::filesystem::path& file);

/// From the launcher to rank 0 of this epoch: all are to wait for another, in which there will be more ranks,
/// where the state is saved at the end of a step. `file` is that of announce_epoch().
core::Result<void> ask_to_wait(const std::filesystem::path& file, core::Epoch epoch);

/// From a process to the launcher, once it has begun a step, or would go on in another epoch.
struct Membership {
  enum class State : std::uint8_t {
    left,       ///< it takes no part any more
    training,   ///< it has begun a step; if a peer were lost, it would go on in another epoch
    waiting,    ///< its session has ended because of a peer: it waits for the next epoch
    forming,    ///< it begins, and leaves this epoch for a later one as soon as there is one
    stands_by,  ///< it has no rank, and is ready to take one
    given_up    ///< as waiting, but it has lost a peer before the epoch was formed
  };

  core::Epoch epoch{};
  State state = State::left;

  friend bool operator==(const Membership&, const Membership&) = default;
};
core::Result<void> declare_membership(const std::filesystem::path& file, const Membership& membership);
std::optional<Membership> declared(const std::filesystem::path& file);

/// A process's side, by the variables TROUPE_SLOT, TROUPE_EPOCH_FILE, TROUPE_MEMBER_FILE and
/// TROUPE_FAILURE_FILE.
class EpochFiles {
 public:
  /// Empty where the launcher keeps no process over a failure.
  static std::optional<EpochFiles> of(const Variables& variables);

  core::Result<void> declare_membership(const Membership& membership) const;
  /// Waits until the launcher has said which epoch comes after `over`. Errc::unavailable if it has said
  /// instead that all processes end, or nothing for as long as `patience`.
  core::Result<NextEpoch> await_epoch_after(core::Epoch over, std::chrono::nanoseconds patience) const;
  /// Like await_epoch_after(), for as long as it takes and while hardly running, until an epoch gives this
  /// process a rank. Calls `memory_told` with what tell_memory() was given, whenever that has changed.
  core::Result<NextEpoch> await_rank_after(core::Epoch over,
                                           const std::function<void(std::size_t)>& memory_told = {}) const;
  /// From the first rank of a host to its spares: how much memory a rank has in large pieces.
  core::Result<void> tell_memory(std::size_t bytes) const;
  /// Whether there is an epoch after `over`, or the launcher ends all processes.
  bool is_over(core::Epoch over) const;
  /// The same, of the first of both.
  bool has_epoch_after(core::Epoch over) const;
  /// Whether the ranks of this epoch were asked to wait for another.
  bool is_asked_to_wait(core::Epoch epoch) const;
  /// The rank of this process in the epoch; empty if it has none.
  std::optional<core::Rank> rank_in(const NextEpoch& next) const;

 private:
  bool job_ends() const;

  int slot_ = 0;
  std::filesystem::path epoch_;
  std::filesystem::path member_;
  std::filesystem::path failure_;
};

/// Looks, in a thread of its own, whether an epoch has ended. Ranks that form one may wait for each other in
/// ways that the loss of a peer does not end, and a node that the launcher has lost may still be there for
/// its peers.
class EpochWatch {
 public:
  /// Looks as often as that, and calls `over`, once, when it is.
  EpochWatch(std::function<bool()> is_over, std::chrono::nanoseconds between_looks,
             std::function<void()> over);

  /// Nobody needs to know any more. From any thread; `over` may still be running.
  void stop() { thread_.request_stop(); }

 private:
  std::jthread thread_;
};

}  // namespace troupe::actors
