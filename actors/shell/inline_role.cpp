#include "actors/shell/inline_role.hpp"

#include <string_view>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

InlineRole::InlineRole(messages::Address self, core::Epoch epoch, std::unique_ptr<Machine> machine, Ways ways)
    : self_(self),
      epoch_(epoch),
      ways_(std::move(ways)),
      host_(self, epoch, std::move(machine), *this, ways_.tracer, ways_.now) {}

void InlineRole::hear(messages::Message body) {
  const messages::Envelope envelope{{self_.rank, messages::Role::trainer, 0}, self_, epoch_, std::move(body)};
  if (ways_.witness != nullptr) ways_.witness->heard(envelope);
  std::string_view state;
  {
    std::lock_guard lock(mutex_);
    supervise([&] { host_.receive(envelope, gpu::HostLine::current().past()); },
              [&](std::string_view what) { host_.threw(what); });
    state = host_.machine().state();
  }
  if (ways_.witness != nullptr) ways_.witness->is_in(self_, state);
}

WaitReport InlineRole::report() const {
  std::lock_guard lock(mutex_);
  return host_.report();
}

void InlineRole::arm(TimerId, std::uint64_t, std::chrono::nanoseconds) {
  CHECK(false, "a role that runs on a thread of others has no timers");
}

void InlineRole::perform(const messages::Address& self, const Work& work) {
  if (ways_.witness != nullptr) ways_.witness->asked(self, work);
  ways_.perform(self, work);
}

}  // namespace troupe::actors
