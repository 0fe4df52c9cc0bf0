#pragma once

// CAF's own means of supervision: exception handlers and monitors, alike in 0.17 and 1.x.

#include <caf/actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/error.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/local_actor.hpp>
#include <caf/sec.hpp>
#include <exception>
#include <string>
#include <utility>

#include "actors/shell/role_host.hpp"

namespace troupe::actors {

/// What escapes an actor's handlers goes to `thrown`, in the actor's thread; then the actor ends, with an
/// error.
template <class Thrown>
void handle_exceptions(caf::scheduled_actor* self, Thrown thrown) {
  self->set_exception_handler([thrown = std::move(thrown)](std::exception_ptr& exception) -> caf::error {
    supervise([&] { std::rethrow_exception(exception); }, thrown);
    return caf::make_error(caf::sec::runtime_error);
  });
}

/// Calls `ended` with the reason, in words, once the actor has ended for one that is not normal: it was not
/// told to. Called from any thread, at once if the actor has ended already.
template <class Ended>
void monitor(const caf::actor& actor, Ended ended) {
  actor->attach_functor([ended = std::move(ended)](const caf::error& reason) {
    const bool is_normal = !reason || reason == caf::exit_reason::normal ||
                           reason == caf::exit_reason::user_shutdown || reason == caf::exit_reason::kill;
    if (!is_normal) ended(caf::to_string(reason));
  });
}

/// "counter, number 12".
inline std::string name_of(const caf::actor& actor) {
  const auto* local = dynamic_cast<const caf::local_actor*>(caf::actor_cast<caf::abstract_actor*>(actor));
  return (local != nullptr ? std::string(local->name()) + ", " : "") + "number " + std::to_string(actor.id());
}

}  // namespace troupe::actors
