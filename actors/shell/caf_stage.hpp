#pragma once

#include <caf/actor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/shell/role_host.hpp"
#include "actors/shell/scheduler_policy.hpp"
#include "actors/world/log.hpp"
#include "core/result.hpp"
#include "messages/envelope.hpp"

namespace caf {
class actor_system;
}

namespace troupe::actors {

struct CafStageOptions {
  core::Rank rank{};
  core::Epoch epoch{};
  SchedulerPolicy policy = SchedulerPolicy::sharing;
  std::size_t workers = 2;  ///< threads of CAF's scheduler (policy "sharing": no CPU while idle)
  /// Roles that have a thread of their own, because what they ask for is carried out there and may block.
  std::vector<messages::Role> detached;
  Tracer* tracer = nullptr;
  core::Profiler* profiler = nullptr;  ///< may be null
  std::function<std::chrono::nanoseconds()> now;
  /// Messages to other ranks; called from any thread. A message that cannot be sent is a failure of this
  /// rank.
  std::function<core::Result<void>(const messages::Envelope&)> send_remote;
  /// Messages to this rank's trainer; called from any thread; must return quickly.
  std::function<void(const messages::Envelope&)> to_trainer;
  /// Work for the data plane; called from the actors' threads.
  std::function<void(const messages::Address& from, const Work&)> perform;
  Logger log;
  /// At the end: how long actors of the trainer may take to end by themselves, and again when they are
  /// killed.
  std::chrono::milliseconds patience = std::chrono::seconds(5);
};

/// Runs the machines of one rank as CAF actors.
class CafStage {
 public:
  static core::Result<std::unique_ptr<CafStage>> create(CafStageOptions options);
  /// Ends every actor and joins CAF's threads. If an actor of the trainer does not end, because its handler
  /// does not return, all are left behind with their system, and no role does anything any more.
  ~CafStage();

  /// All parts are spawned before the first message is posted.
  void spawn(messages::Address address, std::unique_ptr<Machine> machine);
  /// Calls Machine::start of everything spawned.
  void start();

  /// From any thread. To local roles, this rank's trainer, or another rank; the sender takes care of epochs.
  void post(messages::Envelope envelope);

  /// The same from the trainer's thread, on which the role then runs, and whoever it speaks to: until all are
  /// idle, but for those that another thread runs at the moment. So nobody is woken for what takes less time
  /// than that.
  void post_and_run(messages::Envelope envelope);

  /// Work that the role asked for has thrown `what` outside of its actor: the role's parent decides. From any
  /// thread.
  void blame(const messages::Address& role, std::string what);

  /// A CAF actor of the user: it gets a RankEvent for each event of this rank. Subscribe before training
  /// starts. If it ends with an error before the stage does, the rank fails.
  void subscribe(caf::actor subscriber);

  /// The system in which a user's own actors can live.
  caf::actor_system& system();

  /// Asks every actor; actors that do not answer in time are reported as such. Blocks; never call it from an
  /// actor.
  std::vector<WaitReport> wait_reports(std::chrono::milliseconds patience);

  /// Messages posted so far.
  std::uint64_t message_count() const;

  struct Impl;

 private:
  explicit CafStage(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::actors
