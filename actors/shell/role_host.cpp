#include "actors/shell/role_host.hpp"

#include <fmt/format.h>

namespace troupe::actors {

RoleHost::RoleHost(messages::Address self, core::Epoch epoch, std::unique_ptr<Machine> machine,
                   EffectSink& sink, Tracer* tracer, std::function<std::chrono::nanoseconds()> now,
                   core::Profiler* profiler)
    : self_(self),
      epoch_(epoch),
      machine_(std::move(machine)),
      sink_(sink),
      tracer_(tracer),
      profiler_(profiler),
      now_(std::move(now)),
      track_(tracer ? messages::to_string(self) : std::string()),
      last_message_("nothing"),
      last_message_at_(now_()) {}

void RoleHost::start() {
  const gpu::HostScope scope(line_, {});
  Outbox outbox;
  machine_->start(outbox);
  carry_out(outbox);
}

void RoleHost::receive(const messages::Envelope& envelope, const gpu::Past& past) {
  if (envelope.epoch != epoch_) {
    stale_messages_ += 1;
    return;
  }
  auto begin = now_();
  last_message_ = messages::name_of(envelope.body);
  last_message_at_ = begin;
  const core::ProfiledScope range(profiler_, messages::name_of(self_.role), last_message_);
  handle(envelope, past);
  if (!tracer_) return;
  core::TraceEvent event;
  event.track = track_;
  event.name = std::string(last_message_);
  event.begin = begin;
  event.end = now_();
  tracer_->add(std::move(event));
}

void RoleHost::handle(const messages::Envelope& envelope, const gpu::Past& past) {
  // What a Conductor launches next does not depend on which collectives happened to be over: their ends are
  // passed on, but order nothing that it does later.
  const bool is_passed_on = std::holds_alternative<messages::CollectiveDone>(envelope.body) &&
                            self_.role == messages::Role::conductor;
  std::optional<gpu::HostLine> branch;
  if (is_passed_on) branch = line_.branch();
  const gpu::HostScope scope(branch ? *branch : line_, past);
  Outbox outbox;
  machine_->receive(envelope, outbox);
  carry_out(outbox);
}

void RoleHost::timer(TimerId id, std::uint64_t generation) {
  auto found = timer_generations_.find(id);
  if (found == timer_generations_.end() || found->second != generation) return;
  timer_generations_.erase(found);
  const gpu::HostScope scope(line_, {});
  Outbox outbox;
  machine_->timer(id, outbox);
  carry_out(outbox);
}

void RoleHost::carry_out(Outbox& outbox) {
  for (auto& effect : outbox.effects()) {
    std::visit(Overloaded{
                   [&](Send& send) {
                     sink_.post({self_, send.to, epoch_, std::move(send.body)});
                   },
                   [&](ArmTimer& arm) {
                     auto generation = next_generation_++;
                     timer_generations_[arm.id] = generation;
                     sink_.arm(arm.id, generation, arm.after);
                   },
                   [&](CancelTimer& cancel) { timer_generations_.erase(cancel.id); },
                   [&](Perform& perform) { sink_.perform(self_, perform.work); },
               },
               effect);
  }
}

WaitReport RoleHost::report() const {
  return {self_, std::string(machine_->state()), machine_->waiting_for(), std::string(last_message_),
          last_message_at_};
}

std::string render(const std::vector<WaitReport>& reports, std::chrono::nanoseconds now) {
  std::string text;
  for (const auto& report : reports) {
    text += fmt::format("{}: {}{}{}", messages::to_string(report.who), report.state,
                        report.waiting_for.empty() ? "" : ", waits for ", report.waiting_for);
    if (report.since) {
      const double age = std::chrono::duration<double>(now - *report.since).count();
      text += fmt::format(" (last {} {:.3f} s ago)", report.last_message, age);
    }
    text += '\n';
  }
  return text;
}

}  // namespace troupe::actors
