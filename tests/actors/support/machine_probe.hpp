#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "actors/roles/machine.hpp"

namespace troupe::actors {

/// Feeds a machine and keeps what it wanted done.
class MachineProbe {
 public:
  explicit MachineProbe(Machine& machine) : machine_(machine) {}

  /// The effects of this message alone.
  std::vector<Effect> say(messages::Message body, messages::Address from = {}) {
    Outbox outbox;
    machine_.receive({from, {}, core::Epoch{1}, std::move(body)}, outbox);
    return outbox.effects();
  }
  std::vector<Effect> start() {
    Outbox outbox;
    machine_.start(outbox);
    return outbox.effects();
  }
  std::vector<Effect> timer(TimerId id) {
    Outbox outbox;
    machine_.timer(id, outbox);
    return outbox.effects();
  }

 private:
  Machine& machine_;
};

/// The messages of type Message among the effects.
template <class Message>
std::vector<Message> sent(const std::vector<Effect>& effects) {
  std::vector<Message> found;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<Send>(&effect);
    if (send && std::holds_alternative<Message>(send->body)) found.push_back(std::get<Message>(send->body));
  }
  return found;
}

/// The works of type Kind among the effects.
template <class Kind>
std::vector<Kind> performed(const std::vector<Effect>& effects) {
  std::vector<Kind> found;
  for (const auto& effect : effects) {
    const auto* perform = std::get_if<Perform>(&effect);
    const auto* work = perform ? work_if<Kind>(perform->work) : nullptr;
    if (work) found.push_back(*work);
  }
  return found;
}

}  // namespace troupe::actors
