#include "actors/shell/caf_stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <vector>

#include "actors/shell/caf_seam.hpp"
#include "actors/shell/caf_supervision.hpp"
#include "actors/shell/subscribers.hpp"
#include "actors/world/bounded_wait.hpp"
#include "core/errors.hpp"
#include "gpu/order/host_line.hpp"

namespace troupe::actors {

namespace {

using messages::Envelope;
using messages::Role;

/// An envelope as subscribers are told of it. One that is sent to several roles counts once, as sent to the
/// trainer.
std::optional<RankEvent> event_of(const Envelope& envelope) {
  using Kind = RankEvent::Kind;
  if (const auto* reduced = std::get_if<messages::BucketReduced>(&envelope.body))
    return RankEvent{.kind = Kind::bucket_reduced, .step = reduced->step, .bucket = reduced->bucket};
  if (envelope.to.role != Role::trainer) return {};
  if (const auto* decided = std::get_if<messages::StepDecided>(&envelope.body)) {
    return RankEvent{.kind = Kind::step_decided,
                     .step = decided->step,
                     .committed = decided->commit,
                     .reason = decided->reason};
  }
  if (const auto* committed = std::get_if<messages::StepCommitted>(&envelope.body)) {
    if (!committed->commit) return {};
    return RankEvent{.kind = Kind::step_committed, .step = committed->step, .committed = true};
  }
  if (const auto* failed = std::get_if<messages::StepFailed>(&envelope.body))
    return RankEvent{.kind = Kind::failed, .step = failed->step, .reason = failed->failure.message};
  return {};
}

}  // namespace

/// The state that actors refer to. It is left behind with the actor system where that cannot end.
struct CafStage::Impl {
  explicit Impl(CafStageOptions given) : options(std::move(given)) {
    configure(config, options.policy, options.workers);
    system = std::make_unique<caf::actor_system>(config);
    here = std::make_unique<Here>(*system);
  }

  void post(Envelope envelope, Unit from = nullptr);
  void fail_rank(std::string why);

  CafStageOptions options;
  caf::actor_system_config config;
  std::unique_ptr<Here> here;  ///< used by the trainer's thread; outlives the actors that it has run
  std::unique_ptr<caf::actor_system> system;
  std::map<messages::Address, caf::actor> parts;  // written before start(), read by all threads after
  std::mutex subscribers_mutex;                   // guards subscribers
  std::vector<caf::actor> subscribers;
  std::atomic<bool> has_subscribers{false};
  std::atomic<std::uint64_t> posted{0};
  std::atomic<bool> is_ending{false};  ///< actors are told to end
  std::shared_mutex handling;          // guards is_over: handlers of roles share it
  bool is_over = false;                ///< no role does anything any more
};

namespace {

/// The shell of every role: passes messages to the host one at a time. Exceptions of the host are the
/// business of the role's parent.
class RoleActor final : public caf::event_based_actor, private EffectSink {
 public:
  RoleActor(caf::actor_config& config, CafStage::Impl* stage, messages::Address self,
            std::shared_ptr<std::unique_ptr<Machine>> machine)
      : caf::event_based_actor(config),
        stage_(stage),
        host_(self, stage->options.epoch, std::move(*machine), *this, stage->options.tracer,
              stage->options.now, stage->options.profiler, stage->options.log) {
    handle_exceptions(this, [this](std::string_view what) {
      stage_->fail_rank(messages::to_string(host_.address()) + " has ended: " + std::string(what));
    });
  }

  caf::behavior make_behavior() override {
    return {
        [this](const caf_messages::Posted& posted) {
          run([&] { host_.receive(posted.envelope, posted.past); });
        },
        [this](const caf_messages::TimerFired& fired) { run([&] { wait_on(fired); }); },
        [this](caf_messages::Start) { run([&] { host_.start(); }); },
        [this](const caf_messages::Stricken& stricken) { run([&] { host_.threw(stricken.what); }); },
        [this](const caf_messages::ReportWanted& wanted) {
          run([&] { wanted.collector->add(host_.report()); });
        },
    };
  }

  const char* name() const override { return messages::name_of(host_.address().role).data(); }

 private:
  template <class Call>
  void run(const Call& call) {
    const std::shared_lock lock(stage_->handling);
    if (stage_->is_over) return;
    supervise(call, [this](std::string_view what) { host_.threw(what); });
  }

  void post(Envelope envelope) override {
    const Unit here = stage_->here->unit();
    stage_->post(std::move(envelope), unit_of(*this) == here ? here : nullptr);
  }
  void arm(TimerId id, std::uint64_t generation, std::chrono::nanoseconds after) override {
    armed_[id] = generation;
    wait_on({id, generation, posix::Countdown(after, clock().now())});
  }
  /// Waits in pieces, because time in which the process is stopped does not count.
  void wait_on(caf_messages::TimerFired timer) {
    if (armed_[timer.id] != timer.generation) return;
    const auto wait = timer.left.next_wait(clock().now());
    if (wait > std::chrono::nanoseconds::zero())
      tell_self_after(this, wait, timer);
    else
      host_.timer(timer.id, timer.generation);
  }
  void perform(const messages::Address& self, const Work& work) override {
    stage_->options.perform(self, work);
  }

  CafStage::Impl* stage_;
  RoleHost host_;
  std::map<TimerId, std::uint64_t> armed_;  ///< the generation that was armed last
};

}  // namespace

void CafStage::Impl::post(Envelope envelope, Unit from) {
  posted.fetch_add(1, std::memory_order_relaxed);
  if (envelope.to.rank != options.rank) {
    if (auto sent = options.send_remote(envelope); !sent) {
      const messages::Address self{options.rank, Role::rank_supervisor, 0};
      post({self, self, options.epoch, messages::RankFailed{self.rank, messages::failure_of(sent.error())}});
    }
    return;
  }
  if (has_subscribers.load(std::memory_order_acquire)) {
    if (const auto event = event_of(envelope)) {
      std::lock_guard lock(subscribers_mutex);
      for (auto& subscriber : subscribers) tell(subscriber, *event);
    }
  }
  if (envelope.to.role == Role::trainer) {
    options.to_trainer(envelope);
    return;
  }
  auto found = parts.find(envelope.to);
  if (found != parts.end())
    tell(found->second, caf_messages::Posted{std::move(envelope), gpu::HostLine::current().past()}, from);
}

/// Called for an actor that has ended although nobody told it to.
void CafStage::Impl::fail_rank(std::string why) {
  if (is_ending) return;
  options.log.say(LogLevel::error, why);
  const messages::Address supervisor{options.rank, Role::rank_supervisor, 0};
  post({supervisor, supervisor, options.epoch,
        messages::RankFailed{options.rank, {true, core::Errc::internal, std::move(why)}}});
}

core::Result<std::unique_ptr<CafStage>> CafStage::create(CafStageOptions options) {
  try {
    return std::unique_ptr<CafStage>(new CafStage(std::make_unique<Impl>(std::move(options))));
  } catch (const std::exception& error) {
    return core::fail(core::Errc::internal, "the actor system did not start: {}", error.what());
  }
}

CafStage::CafStage(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

/// Every wait here has a limit, whatever the trainer's actors do: roles may be queued behind them in the
/// scheduler for ever. Only a role's running handler is waited for; what it does has limits of its own.
CafStage::~CafStage() {
  impl_->is_ending = true;
  for (auto& [address, part] : impl_->parts) caf::anon_send_exit(part, caf::exit_reason::user_shutdown);
  std::vector<caf::actor_addr> subscribers;
  {
    std::lock_guard lock(impl_->subscribers_mutex);
    for (auto& subscriber : impl_->subscribers) {
      caf::anon_send_exit(subscriber, caf::exit_reason::user_shutdown);
      subscribers.push_back(subscriber.address());
    }
    // A user's actor may own others, which end only when nothing refers to it any more.
    impl_->subscribers.clear();
  }
  run_pending(*impl_->system);
  const BoundedWait wait([system = impl_->system.get()] { system->await_all_actors_done(); });
  const auto all_end = [&] { return wait.ends_within(impl_->options.patience); };
  if (!all_end()) {
    for (const auto& address : subscribers) {
      if (const auto subscriber = caf::actor_cast<caf::actor>(address))
        caf::anon_send_exit(subscriber, caf::exit_reason::kill);  // which no actor can ignore
    }
  }
  if (!all_end()) {
    {
      const std::unique_lock lock(impl_->handling);
      impl_->is_over = true;
    }
    impl_->options.log.warning(
        "an actor of the trainer does not end; it is left behind, with the actor system");
    impl_->parts.clear();
    [[maybe_unused]] Impl* const left_behind = impl_.release();
    return;
  }
  impl_->parts.clear();
  impl_->system.reset();
}

void CafStage::spawn(messages::Address address, std::unique_ptr<Machine> machine) {
  CHECK(address.rank == impl_->options.rank, "a stage runs the roles of its own rank");
  auto boxed = std::make_shared<std::unique_ptr<Machine>>(std::move(machine));
  const auto& detached = impl_->options.detached;
  const bool is_detached = std::find(detached.begin(), detached.end(), address.role) != detached.end();
  auto& part = impl_->parts[address];
  part = is_detached ? impl_->system->spawn<RoleActor, caf::detached>(impl_.get(), address, boxed)
                     : impl_->system->spawn<RoleActor>(impl_.get(), address, boxed);
  monitor(part, [stage = impl_.get(), address](const std::string& reason) {
    stage->fail_rank(fmt::format("{} has ended: {}", messages::to_string(address), reason));
  });
}

void CafStage::start() {
  for (auto& [address, part] : impl_->parts) tell(part, caf_messages::Start{});
}

void CafStage::post(Envelope envelope) {
  impl_->post(std::move(envelope));
}

void CafStage::post_and_run(Envelope envelope) {
  impl_->post(std::move(envelope), impl_->here->unit());
  impl_->here->run();
}

void CafStage::blame(const messages::Address& role, std::string what) {
  const auto found = impl_->parts.find(role);
  if (found != impl_->parts.end()) tell(found->second, caf_messages::Stricken{std::move(what)});
}

void CafStage::subscribe(caf::actor subscriber) {
  monitor(subscriber, [stage = impl_.get(), name = name_of(subscriber)](const std::string& reason) {
    stage->fail_rank(fmt::format("an actor of the trainer of rank {} ({}) has ended: {}",
                                 stage->options.rank.value, name, reason));
  });
  std::lock_guard lock(impl_->subscribers_mutex);
  impl_->subscribers.push_back(std::move(subscriber));
  impl_->has_subscribers.store(true, std::memory_order_release);
}

caf::actor_system& CafStage::system() {
  return *impl_->system;
}

std::vector<WaitReport> CafStage::wait_reports(std::chrono::milliseconds patience) {
  auto collector = std::make_shared<caf_messages::ReportCollector>();
  for (auto& [address, part] : impl_->parts) tell(part, caf_messages::ReportWanted{collector});
  auto reports = collector->wait(impl_->parts.size(), patience);
  for (const auto& [address, part] : impl_->parts) {
    auto is_of = [&who = address](const WaitReport& report) { return report.who == who; };
    if (std::any_of(reports.begin(), reports.end(), is_of)) continue;
    reports.push_back({address, "silent", "nothing known: it did not answer in time", {}, {}});
  }
  std::sort(reports.begin(), reports.end(), [](const auto& a, const auto& b) { return a.who < b.who; });
  return reports;
}

std::uint64_t CafStage::message_count() const {
  return impl_->posted.load(std::memory_order_relaxed);
}

}  // namespace troupe::actors
