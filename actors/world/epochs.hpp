#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "actors/world/environment.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

// What a launcher and the processes that it keeps over a failure tell each other, on one host: each file has
// one writer, and is replaced as a whole.

/// From the launcher to all ranks: the epoch that is to be formed, and the port where its rank 0 listens.
struct NextEpoch {
  core::Epoch epoch{};
  std::uint16_t control_port = 0;

  friend bool operator==(const NextEpoch&, const NextEpoch&) = default;
};
core::Result<void> announce_epoch(const std::filesystem::path& file, const NextEpoch& next);
/// Empty if there is no such file, or it cannot be parsed.
std::optional<NextEpoch> announced(const std::filesystem::path& file);

/// From a rank to the launcher, once it has begun a step in the epoch.
struct Membership {
  enum class State : std::uint8_t {
    left,      ///< it takes no part any more
    training,  ///< if a peer were lost, its process would go on in another epoch
    waiting,   ///< its session has ended because of a peer: it waits for the next epoch
  };

  core::Epoch epoch{};
  State state = State::left;

  friend bool operator==(const Membership&, const Membership&) = default;
};
core::Result<void> declare_membership(const std::filesystem::path& file, const Membership& membership);
std::optional<Membership> declared(const std::filesystem::path& file);

/// A rank's side, by the variables TROUPE_EPOCH_FILE, TROUPE_MEMBER_FILE and TROUPE_FAILURE_FILE.
class EpochFiles {
 public:
  /// Empty where the launcher keeps no process over a failure.
  static std::optional<EpochFiles> of(const Variables& variables);

  core::Result<void> declare_membership(const Membership& membership) const;
  /// Waits until the launcher has said which epoch comes after `over`. Errc::unavailable if it has said
  /// instead that all processes end, or nothing for as long as `patience`.
  core::Result<NextEpoch> await_epoch_after(core::Epoch over, std::chrono::nanoseconds patience) const;

 private:
  std::filesystem::path epoch_;
  std::filesystem::path member_;
  std::filesystem::path failure_;
};

}  // namespace troupe::actors
