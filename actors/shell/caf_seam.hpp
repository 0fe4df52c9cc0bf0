#pragma once

// Every difference between CAF 0.17.6 (Debian's) and 1.x that matters to Troupe, but for caf_units.hpp's. No
// other file asks for CAF's version.

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/shell/caf_release.hpp"
#include "actors/shell/caf_units.hpp"
#include "actors/shell/role_host.hpp"
#include "actors/shell/scheduler_policy.hpp"
#include "actors/shell/subscribers.hpp"
#include "messages/envelope.hpp"
#include "posix/countdown.hpp"

#if TROUPE_CAF_VERSION < 10000
#include <caf/scheduler/test_coordinator.hpp>
#endif
#if TROUPE_CAF_VERSION >= 1800
#include <caf/init_global_meta_objects.hpp>
#endif

namespace troupe::actors::caf_messages {

struct Posted {
  messages::Envelope envelope;
  gpu::Past past;
};
struct TimerFired {
  TimerId id = 0;
  std::uint64_t generation = 0;
  posix::Countdown left{std::chrono::nanoseconds::zero()};
};
struct Start {};
/// Work that the role asked for has thrown in another thread.
struct Stricken {
  std::string what;
};
/// Collects the answers to "who waits for whom".
class ReportCollector {
 public:
  void add(WaitReport report) {
    std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    changed_.notify_all();
  }
  /// Waits until there are this many, or until patience runs out.
  std::vector<WaitReport> wait(std::size_t count, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return reports_.size() >= count; });
    return reports_;
  }

 private:
  std::mutex mutex_;  // guards reports_
  std::condition_variable changed_;
  std::vector<WaitReport> reports_;
};

struct ReportWanted {
  std::shared_ptr<ReportCollector> collector;  // owned by the asker and by the messages in flight
};

}  // namespace troupe::actors::caf_messages

#if TROUPE_CAF_VERSION < 1800
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::Posted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::TimerFired)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::Start)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::Stricken)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::ReportWanted)
#else
CAF_BEGIN_TYPE_ID_BLOCK(troupe, first_custom_type_id)
CAF_ADD_TYPE_ID(troupe, (troupe::actors::caf_messages::Posted))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::caf_messages::TimerFired))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::caf_messages::Start))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::caf_messages::Stricken))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::caf_messages::ReportWanted))
CAF_END_TYPE_ID_BLOCK(troupe)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::Posted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::TimerFired)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::Start)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::Stricken)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::caf_messages::ReportWanted)
#endif

namespace troupe::actors {

/// Fills the options of an actor system. `workers` is the number of the scheduler's threads.
inline void configure(caf::actor_system_config& config, SchedulerPolicy policy, std::size_t workers) {
  const char* name = policy == SchedulerPolicy::sharing ? "sharing" : "testing";
#if TROUPE_CAF_VERSION < 1800
  config.set("scheduler.policy", caf::atom_from_string(name));
  config.set("scheduler.max-threads", workers);
  config.set("scheduler.max-throughput", std::size_t{32});
#else
  // Once for all systems, because the table of types belongs to the process.
  [[maybe_unused]] static const bool types_are_known = [] {
    caf::init_global_meta_objects<caf::id_block::troupe, caf::id_block::troupe_events>();
    caf::core::init_global_meta_objects();
    return true;
  }();
  config.set("caf.scheduler.policy", std::string(name));
  config.set("caf.scheduler.max-threads", workers);
  config.set("caf.scheduler.max-throughput", std::size_t{32});
#endif
}

/// Runs what is pending in a system with the policy `testing`, which has no threads to do it.
inline void run_pending([[maybe_unused]] caf::actor_system& system) {
#if TROUPE_CAF_VERSION < 10000
  auto* coordinator = dynamic_cast<caf::scheduler::test_coordinator*>(&system.scheduler());
  if (coordinator != nullptr) coordinator->run();
#endif
}

/// Sends a message to itself after a delay.
template <class Message>
void tell_self_after(caf::event_based_actor* self, std::chrono::nanoseconds after, Message message) {
#if TROUPE_CAF_VERSION < 10000
  self->delayed_send(self, after, std::move(message));
#else
  self->mail(std::move(message)).delay(after).send(self);
#endif
}

}  // namespace troupe::actors
