#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "actors/session/trainer_inbox.hpp"
#include "actors/shell/rank_world.hpp"
#include "gpu/collective/group.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// The Coordinator's store of small values, which any rank can wait for: collective groups find each other
/// through it, and ranks agree on what to restore.
class ControlRendezvous final : public gpu::Rendezvous {
 public:
  ControlRendezvous(RankWorld& world, TrainerInbox& inbox) : world_(world), inbox_(inbox) {}

  core::Result<void> set(const std::string& key, const std::string& value) override {
    world_.post(envelope(messages::StoreSet{key, value}));
    return {};
  }

  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override {
    auto request = next_request_++;
    world_.post(envelope(messages::StoreGet{request, key}));
    return inbox_.wait_store_value(request, deadline);
  }

 private:
  messages::Envelope envelope(messages::Message message) const {
    return {{world_.rank(), messages::Role::trainer, 0},
            {core::Rank{0}, messages::Role::coordinator, 0},
            world_.epoch(),
            std::move(message)};
  }

  RankWorld& world_;
  TrainerInbox& inbox_;
  std::atomic<std::uint64_t> next_request_{1};
};

}  // namespace troupe::actors
