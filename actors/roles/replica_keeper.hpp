#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/exchange.hpp"
#include "actors/roles/machine.hpp"
#include "core/checkpoint/cliques.hpp"
#include "core/ids.hpp"
#include "messages/checkpoint.hpp"
#include "messages/replicas.hpp"

namespace troupe::actors {

struct ReplicaKeeperConfig {
  core::Rank rank{};
  core::Clique clique;
  std::vector<std::uint32_t> pieces;  ///< of the rank's structure, which are its own copy
  std::uint64_t chunk_bytes = 1;
  std::uint32_t credits = 1;  ///< rounds of an exchange that may be in flight at once
  /// For the rank's own copy to be complete, and for removing what a save made useless.
  std::chrono::nanoseconds deadline = std::chrono::minutes(5);
};

/// One rank's part in local saves: empty -> copying -> copied -> receiving -> held -> tidying -> kept, or
/// empty after a save that failed; serving while a lost copy is brought back. Its LocalWriter, a
/// CheckpointWriter, writes the rank's own copy; then the members of the clique exchange theirs. Saves are
/// processed one at a time, in order.
///
/// LT-3: the members of a clique share the same rounds in the same order: a failure on one of them is
/// reported at the end, and only the end of the group ends an exchange early. LT-4: no more rounds are in
/// flight than there are credits.
class ReplicaKeeperMachine final : public Machine {
 public:
  explicit ReplicaKeeperMachine(ReplicaKeeperConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  void timer(TimerId id, Outbox& outbox) override;
  /// One that gives up a copy in the making. Null while an exchange is running: its rounds are shared.
  std::unique_ptr<Machine> successor(const messages::Failure& why, const messages::Envelope* heard,
                                     Outbox& outbox) const override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  enum class State : std::uint8_t { empty, copying, copied, receiving, held, tidying, kept, serving };
  static constexpr TimerId kDeadline = 0;

  struct Save {
    messages::SaveAnnounced announced;
    core::CopyName name;
    std::optional<messages::LocalSaveOver> over;  ///< known while an exchange is still running
  };
  struct Running {
    Exchange plan;
    std::uint32_t rounds = 0;
    std::uint32_t begun = 0;  ///< rounds
    bool lost = false;        ///< the group has ended
    messages::Failure failure;
  };

  void on(const messages::SaveAnnounced& announced, Outbox& outbox);
  void on(const messages::CopyDirectoryMade& made, Outbox& outbox);
  void on(const messages::FilesDurable& durable, Outbox& outbox);
  void on(const messages::SaveFailed& failed, Outbox& outbox);
  void on(const messages::CopySealed& sealed, Outbox& outbox);
  void on(const messages::ExchangeBegan& begun, Outbox& outbox);
  void on(const messages::RoundRead& read, Outbox& outbox);
  void on(const messages::RoundShared& shared, Outbox& outbox);
  void on(const messages::RoundWritten& written, Outbox& outbox);
  void on(const messages::ExchangeClosed& closed, Outbox& outbox);
  void on(const messages::LocalSaveOver& over, Outbox& outbox);
  void on(const messages::RetrieveBegan& begun, Outbox& outbox);
  void begin_next(Outbox& outbox);
  void say_ready(std::uint64_t bytes, messages::Failure failure, Outbox& outbox);
  void say_held(messages::Failure failure, Outbox& outbox);
  void begin_exchange(const core::CopyName& name, std::vector<core::CopyTransfer> transfers, Outbox& outbox);
  void go_on(Outbox& outbox);
  void give_back(std::uint32_t credit, const messages::Failure& failure, Outbox& outbox);
  void release(const messages::LocalSaveOver& over, Outbox& outbox) const;
  void tidy(Outbox& outbox);
  void conclude(Outbox& outbox);
  bool is_current(std::uint64_t sequence, State state) const;
  bool is_running(std::uint64_t exchange) const { return running_ && exchange == exchange_; }
  messages::Address peer(messages::Role role) const { return {config_.rank, role, 0}; }
  static messages::Address coordinator() { return {core::Rank{0}, messages::Role::replica_coordinator, 0}; }

  ReplicaKeeperConfig config_;
  State state_ = State::empty;
  std::optional<std::uint64_t> seed_;
  std::optional<Save> save_;                     ///< the one in progress
  std::deque<messages::SaveAnnounced> waiting_;  ///< as many as the trainer began before their buckets held
                                                 ///< it up
  std::uint64_t last_sequence_ = 0;              ///< of the last save processed
  std::map<std::uint64_t, messages::LocalSaveOver> early_ends_;  ///< of saves that this rank has not reached
  std::uint64_t exchange_ = 0;
  std::optional<Running> running_;
  std::vector<std::uint32_t> free_credits_;
};

}  // namespace troupe::actors
