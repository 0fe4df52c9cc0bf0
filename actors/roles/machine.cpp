#include "actors/roles/machine.hpp"

namespace troupe::actors {

Outbox::Outbox() = default;
Outbox::~Outbox() = default;

void Outbox::send(messages::Address to, messages::Message body) {
  effects_.push_back(Send{to, std::move(body)});
}

void Outbox::arm(TimerId id, std::chrono::nanoseconds after) {
  effects_.push_back(ArmTimer{id, after});
}

void Outbox::cancel(TimerId id) {
  effects_.push_back(CancelTimer{id});
}

void Outbox::perform(Work work) {
  effects_.push_back(Perform{std::move(work)});
}

std::unique_ptr<Machine> Machine::successor(const messages::Failure&, const messages::Envelope*,
                                            Outbox&) const {
  return nullptr;
}

}  // namespace troupe::actors
