#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/checkpoint/cliques.hpp"
#include "core/ids.hpp"
#include "messages/replicas.hpp"

namespace troupe::actors {

struct ReplicaCoordinatorConfig {
  core::WorldSize world{1};
  std::vector<core::Clique> cliques;
  /// For each phase of a local save: until every rank has its own copy, and until every clique has exchanged
  /// its copies.
  std::chrono::nanoseconds deadline = std::chrono::minutes(5);
};

/// Agrees on local saves, in rank 0's process: idle -> copying -> exchanging -> idle. It handles one save at
/// a time, which fails on all ranks with the first failure of any rank.
///
/// LT-1: a local save counts only after every rank holds the copies of its whole clique. LT-2: older copies
/// are removed only when a save counts, or after a restore, and every rank is told the same outcome of every
/// save.
class ReplicaCoordinatorMachine final : public Machine {
 public:
  explicit ReplicaCoordinatorMachine(ReplicaCoordinatorConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  void timer(TimerId id, Outbox& outbox) override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  enum class State : std::uint8_t { idle, copying, exchanging };
  static constexpr TimerId kDeadline = 0;

  void on(const messages::CopyReady& ready, Outbox& outbox);
  void on(const messages::CopiesHeld& held, Outbox& outbox);
  void exchange(Outbox& outbox);
  void finish(messages::Failure failure, Outbox& outbox);
  messages::Failure blame(core::Rank rank, const messages::Failure& failure) const;
  std::vector<int> missing() const;
  bool is_member(core::Rank rank) const { return rank.value >= 0 && rank.value < config_.world.value; }
  static messages::Address keeper(core::Rank rank) { return {rank, messages::Role::replica_keeper, 0}; }

  ReplicaCoordinatorConfig config_;
  State state_ = State::idle;
  std::uint64_t sequence_ = 0;  ///< of the save in progress, or of the last one
  std::map<core::Rank, messages::CopyReady> ready_;
  std::map<core::Rank, messages::CopiesHeld> held_;
};

}  // namespace troupe::actors
