#pragma once

#include "actors/world/log.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// What a trainer is told, for people: notes about waits at level info, and how the job gets on at level
/// debug.
void say_to_people(const messages::Message& told, const Logger& log);
/// A warning where the norm of a step's gradients is unusually large.
void warn_of_norm(const messages::StepDecided& decided, double factor, const Logger& log);

}  // namespace troupe::actors
