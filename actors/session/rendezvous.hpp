#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "actors/session/trainer_inbox.hpp"
#include "actors/shell/rank_world.hpp"
#include "gpu/collective/group.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// The Coordinator's store, whose values any rank can wait for: collective groups find each other through it,
/// and ranks agree on what to restore. A key is set once. A value that does not fit into one message travels
/// in several. Thread-safe.
class ControlRendezvous final : public gpu::Rendezvous {
 public:
  /// The most that a value may have, and the most of it that one message carries.
  static constexpr std::size_t kMaxValueBytes = std::size_t{64} << 20;
  static constexpr std::size_t kPartBytes = std::size_t{256} << 10;

  ControlRendezvous(RankWorld& world, TrainerInbox& inbox) : world_(world), inbox_(inbox) {}

  /// With a value above kPartBytes it waits until the Coordinator has all but the first part.
  /// Errc::invalid_argument for one above kMaxValueBytes; nothing is stored then.
  core::Result<void> set(const std::string& key, const std::string& value) override;
  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override;

 private:
  void post(messages::Message message);
  core::Result<std::string> fetch(const std::string& key, std::chrono::nanoseconds deadline);

  RankWorld& world_;
  TrainerInbox& inbox_;
  std::atomic<std::uint64_t> next_request_{1};
};

}  // namespace troupe::actors
