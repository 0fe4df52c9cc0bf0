#pragma once

// What runs actors, and how they are spoken to, in CAF 0.17.6 and in 1.x.

#include <caf/actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/local_actor.hpp>
#include <cstddef>
#include <deque>
#include <utility>

#include "actors/shell/caf_release.hpp"

#if TROUPE_CAF_VERSION < 10000
#include <caf/execution_unit.hpp>
#include <caf/resumable.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>
#else
#include <caf/anon_mail.hpp>
#endif

namespace troupe::actors {

#if TROUPE_CAF_VERSION < 10000
/// What runs an actor: a thread of the scheduler, or Here. Null: whatever the scheduler chooses.
using Unit = caf::execution_unit*;
#else
using Unit = void*;  // units cannot be chosen any more
#endif

inline Unit unit_of([[maybe_unused]] const caf::local_actor& actor) {
#if TROUPE_CAF_VERSION < 10000
  return actor.context();
#else
  return nullptr;
#endif
}

/// `from` is the unit that sends it, which also runs the receiver if nobody else does.
template <class Message>
void tell(const caf::actor& to, Message message, [[maybe_unused]] Unit from = nullptr) {
#if TROUPE_CAF_VERSION < 10000
  if (to)
    caf::actor_cast<caf::abstract_actor*>(to)->eq_impl(caf::make_message_id(), nullptr, from,
                                                       std::move(message));
#else
  caf::anon_mail(std::move(message)).send(to);
#endif
}

#if TROUPE_CAF_VERSION < 10000
/// Runs actors on the thread that speaks to them: an actor that was idle belongs to the unit from which its
/// message comes, until it is idle again. Used by one thread.
class Here {
 public:
  explicit Here(caf::actor_system& system) : unit_(system) {}

  Unit unit() { return &unit_; }
  /// Waits until all are idle to whom this unit has spoken; those that others keep busy meanwhile go to the
  /// scheduler.
  void run() { unit_.run(); }

 private:
  class OwnUnit final : public caf::execution_unit {
   public:
    explicit OwnUnit(caf::actor_system& system) : caf::execution_unit(&system) {}
    void exec_later(caf::resumable* actor) override { ready_.push_back(actor); }
    void run() {
      for (int turn = 0; !ready_.empty(); ++turn) {
        caf::resumable* const actor = ready_.front();
        ready_.pop_front();
        turn < kMostTurns ? give_turn(*actor) : system().scheduler().enqueue(actor);
      }
    }

   private:
    static constexpr int kMostTurns = 64;
    static constexpr std::size_t kMessagesOfTurn = 32;

    void give_turn(caf::resumable& actor) {
      if (actor.resume(this, kMessagesOfTurn) == caf::resumable::resume_later)
        return ready_.push_back(&actor);
      caf::intrusive_ptr_release(&actor);
    }

    std::deque<caf::resumable*> ready_;  // each with a reference of ours, as the scheduler has
  };
  OwnUnit unit_;
};
#else
/// Leaves actors to the scheduler.
class Here {
 public:
  explicit Here(caf::actor_system&) {}
  Unit unit() { return nullptr; }
  void run() {}
};
#endif

}  // namespace troupe::actors
