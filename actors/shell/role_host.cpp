#include "actors/shell/role_host.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

RoleHost::RoleHost(messages::Address self, core::Epoch epoch, std::unique_ptr<Machine> machine,
                   EffectSink& sink, Tracer* tracer, std::function<std::chrono::nanoseconds()> now,
                   core::Profiler* profiler, Logger log)
    : self_(self),
      epoch_(epoch),
      machine_(std::move(machine)),
      sink_(sink),
      tracer_(tracer),
      profiler_(profiler),
      log_(log),
      now_(std::move(now)),
      last_message_("nothing"),
      last_message_at_(now_()),
      track_(tracer ? messages::to_string(self) : std::string()) {}

void EffectSink::end_process(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  CHECK(false, "the supervisor of a rank, or its successor, can fence it");
}

/// What was asked for before something threw is carried out all the same, so that what the machine remembers
/// is what was done; but for work, which may need what the work before it failed to do.
template <class Call>
void RoleHost::run(const messages::Envelope* heard, const Call& call) {
  if (has_failed_) return;
  Outbox outbox;
  std::exception_ptr thrown;
  const auto note = [&thrown] {
    if (!thrown) thrown = std::current_exception();
  };
  try {
    call(outbox);
  } catch (...) {
    note();
  }
  bool works = true;
  for (auto& effect : outbox.effects()) {
    if (!works && std::holds_alternative<Perform>(effect)) continue;
    try {
      carry_out(effect);
    } catch (...) {
      note();
      works = works && !std::holds_alternative<Perform>(effect);
    }
  }
  if (!thrown) return;
  if (heard != nullptr) thrown_at_ = std::make_unique<messages::Envelope>(*heard);
  std::rethrow_exception(thrown);
}

void RoleHost::start() {
  const gpu::HostScope scope(line_, {});
  run(nullptr, [this](Outbox& outbox) { machine_->start(outbox); });
}

void RoleHost::threw(std::string_view what) {
  constexpr int kMostRestarts = 3;
  if (has_failed_) return;
  messages::Failure why{
      true, core::Errc::internal,
      fmt::format("{} failed while it handled {}: {}", messages::to_string(self_), last_message_, what)};
  log_.say(LogLevel::error, why.message);
  if (restarts_++ == kMostRestarts) return fail(std::move(why));
  bool is_replaced = false;
  std::optional<std::string> again;
  supervise([&] { is_replaced = restart(why); }, [&](std::string_view thrown) { again = thrown; });
  if (again) return threw(*again);
  if (!is_replaced) return fail(std::move(why));
  log_.warning("{} goes on without what it was doing", messages::to_string(self_));
}

bool RoleHost::restart(const messages::Failure& why) {
  const gpu::HostScope scope(line_, {});
  bool is_replaced = false;
  run(nullptr, [&](Outbox& outbox) {
    auto next = machine_->successor(why, thrown_at_.get(), outbox);
    if (!next) return;
    timer_generations_.clear();
    machine_ = std::move(next);
    thrown_at_.reset();
    is_replaced = true;
  });
  return is_replaced;
}

void RoleHost::fail(messages::Failure why) {
  if (std::exchange(has_failed_, true)) return;
  if (self_.role == messages::Role::rank_supervisor) return sink_.end_process(why.message);
  const messages::Address supervisor{self_.rank, messages::Role::rank_supervisor, 0};
  sink_.post({self_, supervisor, epoch_, messages::RankFailed{self_.rank, std::move(why)}});
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
  if (log_.is_on(LogLevel::trace)) {
    log_.say(LogLevel::trace, fmt::format("{} hears {} of {}", messages::to_string(self_), last_message_,
                                          messages::to_string(envelope.from)));
  }
  handle(envelope, past);
  if (log_.is_on(LogLevel::debug)) say_state();
  if (!tracer_) return;
  core::TraceEvent event;
  event.track = track_;
  event.name = std::string(last_message_);
  event.begin = begin;
  event.end = now_();
  tracer_->add(std::move(event));
}

void RoleHost::say_state() {
  const auto state = machine_->state();
  if (std::exchange(said_state_, state) == state) return;
  log_.debug("{} is {}", messages::to_string(self_), state);
}

void RoleHost::handle(const messages::Envelope& envelope, const gpu::Past& past) {
  // What a Conductor launches next does not depend on which collectives happened to have ended: their ends
  // are passed on, but order nothing that it does later.
  const bool is_passed_on = std::holds_alternative<messages::CollectiveDone>(envelope.body) &&
                            self_.role == messages::Role::conductor;
  std::optional<gpu::HostLine> branch;
  if (is_passed_on) branch = line_.branch();
  const gpu::HostScope scope(branch ? *branch : line_, past);
  run(&envelope, [&](Outbox& outbox) { machine_->receive(envelope, outbox); });
}

void RoleHost::timer(TimerId id, std::uint64_t generation) {
  auto found = timer_generations_.find(id);
  if (found == timer_generations_.end() || found->second != generation) return;
  timer_generations_.erase(found);
  const gpu::HostScope scope(line_, {});
  run(nullptr, [&](Outbox& outbox) { machine_->timer(id, outbox); });
}

void RoleHost::carry_out(Effect& effect) {
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

WaitReport RoleHost::report() const {
  if (has_failed_) return {self_, "failed", {}, std::string(last_message_), last_message_at_};
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
