#include "actors/simulation/simulated_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/simulation/invariants.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "messages/border.hpp"

namespace troupe::actors {

/// A role's shell in the simulator: a mailbox in front of the host.
struct SimulatedRank::Part final : EffectSink {
  Part(SimulatedRank& owner, messages::Address self, std::unique_ptr<Machine> machine)
      : rank(owner),
        host(self, owner.epoch(), std::move(machine), *this, owner.hooks_.tracer,
             [&loop = owner.surroundings_.loop] { return loop.now(); }) {}

  void post(messages::Envelope envelope) override { rank.post(std::move(envelope)); }
  void arm(TimerId id, std::uint64_t generation, std::chrono::nanoseconds after) override {
    rank.surroundings_.loop.schedule(
        after, "timer", [this, id, generation] { rank.run(*this, [&] { host.timer(id, generation); }); });
  }
  void perform(const messages::Address& self, const Work& work) override {
    rank.surroundings_.monitor.on_work(self, work);
    rank.hooks_.perform(self, work);
  }
  void end_process(const std::string& why) override {
    rank.log(Subsystem::actors).say(LogLevel::error, why);
    rank.surroundings_.loop.schedule({}, "end of a process",
                                     [this] { rank.surroundings_.end_process(rank.rank_); });
  }

  SimulatedRank& rank;
  Mailboxes::Mailbox mailbox;
  bool scheduled = false;
  std::string_view state;  ///< after the last message
  RoleHost host;
};

SimulatedProcess::SimulatedProcess(EventLoop& loop, gpu::SimulatedDeviceOptions options, bool checks_order)
    : device(loop, std::move(options)) {
  if (!checks_order) return;
  checked = gpu::check_order(device, [this](const std::string& what) { touched_out_of_order(what); });
}

SimulatedRank::SimulatedRank(const SimulatedSurroundings& surroundings, core::Rank rank,
                             core::WorldSize world, SimulatedProcess& process)
    : surroundings_(surroundings),
      rank_(rank),
      world_(world),
      delays_(surroundings_.seed, fmt::format("rank {}", rank.value), "mailboxes"),
      process_(process) {
  process_.touched_out_of_order = [&monitor = surroundings_.monitor, rank](const std::string& what) {
    monitor.violate(fmt::format("ST-1: rank {}: {}", rank.value, what));
  };
  process_.device.wait_with(
      [this](const auto& ready, auto deadline) { return wait_for_device(ready, deadline); });
  LogOptions log;
  log.sentences = [this](std::string_view sentence) { said_.emplace_back(sentence); };
  log_ = Log::open(std::move(log)).value();
  io_.delay = local_io_.delay = surroundings_.io_delay;
  const auto slower = surroundings_.local_io_delays.find(rank.value);
  if (slower != surroundings_.local_io_delays.end()) local_io_.delay = slower->second;
}

SimulatedRank::~SimulatedRank() = default;

void SimulatedRank::run_trainer(std::function<core::Result<void>(SimulatedRank&)> body) {
  fiber_ = std::make_unique<posix::Fiber>([this, run = std::move(body)] { result_ = run(*this); });
  resume_soon();
}

void SimulatedRank::resume_soon() {
  if (resume_scheduled_) return;
  resume_scheduled_ = true;
  surroundings_.loop.schedule({}, "trainer", [this] {
    resume_scheduled_ = false;
    if (fiber_->has_ended()) return;
    const gpu::HostScope scope(process_.trainer_line, {});
    is_on_fiber_ = true;
    fiber_->resume();
    is_on_fiber_ = false;
  });
}

void SimulatedRank::rest() {
  waiting_ = true;
  fiber_->yield();
  waiting_ = false;
}

void SimulatedRank::compute(std::chrono::nanoseconds duration) {
  auto until = surroundings_.loop.now() + duration;
  if (dead_ || duration.count() == 0) return;
  surroundings_.loop.schedule(duration, "compute", [this] { resume_soon(); });
  while (surroundings_.loop.now() < until && !dead_) rest();
}

bool SimulatedRank::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
                         std::chrono::nanoseconds deadline) {
  auto give_up = surroundings_.loop.now() + deadline;
  AlarmId alarm = 0;
  while (!ready() && !dead_ && surroundings_.loop.now() < give_up) {
    if (alarm == 0) alarm = surroundings_.loop.arm(deadline, [this] { resume_soon(); });
    lock.unlock();
    rest();
    lock.lock();
  }
  if (alarm != 0) surroundings_.loop.cancel(alarm);
  return ready() && !dead_;
}

/// Looks again and again, since a stream tells nobody that it is empty.
bool SimulatedRank::wait_for_device(const std::function<bool()>& ready, std::chrono::nanoseconds deadline) {
  if (!is_on_fiber_) return false;
  const auto give_up = surroundings_.loop.now() + deadline;
  auto interval = std::chrono::nanoseconds(std::chrono::microseconds(10));
  while (!ready() && !dead_ && surroundings_.loop.now() < give_up) {
    compute(interval);
    interval = std::min<std::chrono::nanoseconds>(2 * interval, std::chrono::milliseconds(1));
  }
  return ready();
}

void SimulatedRank::wake() {
  if (waiting_) resume_soon();
}

void SimulatedRank::kill() {
  if (dead_) return;
  dead_ = true;
  surroundings_.fabric.kill(rank_);
  network_.reset();
  if (!has_ended()) resume_soon();
}

core::Result<gpu::CollectiveBackend*> SimulatedRank::collectives(gpu::Rendezvous&) {
  collectives_ = surroundings_.fabric.backend();
  return collectives_.get();
}

core::Result<void> SimulatedRank::open(Hooks hooks) {
  opened_ = true;
  hooks_ = std::move(hooks);
  return {};
}

std::uint64_t SimulatedRank::unique() {
  return core::hash64(fmt::format("{} {} {}", surroundings_.seed, rank_.value, unique_numbers_++));
}

void SimulatedRank::spawn(messages::Address address, std::unique_ptr<Machine> machine) {
  CHECK(address.rank == rank_, "a rank plays its own roles");
  auto& part = parts_[address] = std::make_unique<Part>(*this, address, std::move(machine));
  const auto role = static_cast<std::size_t>(address.role);
  if (places_.size() <= role) places_.resize(role + 1);
  if (places_[role].size() <= address.index) places_[role].resize(address.index + 1, nullptr);
  places_[role][address.index] = part.get();
}

SimulatedRank::Part* SimulatedRank::find(const messages::Address& role) const {
  const auto place = static_cast<std::size_t>(role.role);
  const bool is_known = role.rank == rank_ && place < places_.size() && role.index < places_[place].size();
  return is_known ? places_[place][role.index] : nullptr;
}

core::Result<void> SimulatedRank::start() {
  if (dead_) return core::fail(core::Errc::aborted, "rank {} is dead", rank_.value);
  network_ = open_network_();
  for (auto& [address, part] : parts_) {
    supervise([&part = part] { part->host.start(); },
              [&part = part](std::string_view what) { part->host.threw(what); });
  }
  return {};
}

void SimulatedRank::post(messages::Envelope envelope) {
  if (dead_ || closed_) return;
  messages_ += 1;
  surroundings_.monitor.on_message(rank_, envelope);
  if (envelope.to.rank == rank_) return deliver(std::move(envelope));
  auto sent = check_sent(envelope, network_->send(envelope.to.rank, messages::outgoing(envelope)));
  if (sent) return;
  const messages::Address self{rank_, messages::Role::rank_supervisor, 0};
  deliver({self, self, epoch(), messages::RankFailed{rank_, messages::failure_of(sent.error())}});
}

void SimulatedRank::deliver(messages::Envelope envelope) {
  if (envelope.to.role == messages::Role::trainer) {
    if (const auto* published = std::get_if<messages::Published>(&envelope.body)) {
      surroundings_.monitor.on_published(rank_, published->step, published->bucket,
                                         hooks_.published_bits(published->bucket));
    }
    if (std::holds_alternative<messages::StepFailed>(envelope.body))
      surroundings_.monitor.experts().failed(rank_);
    hooks_.to_trainer(envelope);
    return;
  }
  auto* found = find(envelope.to);
  if (found == nullptr) return;
  auto& part = *found;
  surroundings_.mailboxes->push(part.mailbox, std::move(envelope), gpu::HostLine::current().past());
  if (part.scheduled) return;
  part.scheduled = true;
  surroundings_.loop.schedule(delays_.up_to(surroundings_.mailbox_delay), "message",
                              [this, &part] { run_one_message(part); });
}

void SimulatedRank::run_one_message(Part& part) {
  part.scheduled = false;
  if (dead_ || closed_ || part.mailbox.is_empty()) return;
  const auto& posted = *part.mailbox.first;
  surroundings_.loop.note(messages::name_of(posted.envelope.body));
  run(part, [&] { part.host.receive(posted.envelope, posted.past); });
  surroundings_.mailboxes->pop(part.mailbox);
  if (part.mailbox.is_empty() || part.scheduled) return;
  part.scheduled = true;
  surroundings_.loop.schedule(delays_.up_to(surroundings_.mailbox_delay), "message",
                              [this, &part] { run_one_message(part); });
}

/// Does what an actor's own thread does.
template <class Call>
void SimulatedRank::run(Part& part, const Call& call) {
  if (dead_ || closed_) return;
  supervise(call, [&part](std::string_view what) { part.host.threw(what); });
  note_state(part);
}

void SimulatedRank::blame(const messages::Address& role, std::string what) {
  auto* found = find(role);
  if (found == nullptr) return;
  surroundings_.loop.schedule(
      delays_.up_to(surroundings_.mailbox_delay), "blame",
      [this, &part = *found, what = std::move(what)] { run(part, [&] { part.host.threw(what); }); });
}

void SimulatedRank::note_state(Part& part) {
  const auto state = part.host.machine().state();
  if (std::exchange(part.state, state) != state && surroundings_.entered)
    surroundings_.entered(part.host.address(), state);
}

void SimulatedRank::heard(const messages::Envelope& envelope) {
  surroundings_.loop.note(messages::name_of(envelope.body));
  if (!dead_) surroundings_.monitor.experts().heard(envelope);
}

void SimulatedRank::asked(const messages::Address& who, const Work& work) {
  if (!dead_) surroundings_.monitor.experts().asked(who, work);
}

void SimulatedRank::is_in(const messages::Address& who, std::string_view state) {
  const bool is_new = std::exchange(states_[who], state) != state;
  if (is_new && surroundings_.entered) surroundings_.entered(who, state);
}

Storage* SimulatedRank::local_storage() {
  const auto place = static_cast<std::size_t>(rank_.value);
  return place < surroundings_.local_storages.size() ? surroundings_.local_storages[place] : nullptr;
}

/// Each node has one rank, and ranks that are gone were on the nodes of those that are left, in turn.
std::map<core::Rank, Storage*> SimulatedRank::local_storages_beside() {
  std::map<core::Rank, Storage*> beside;
  const auto world = static_cast<std::size_t>(world_size().value);
  const auto& storages = surroundings_.local_storages;
  for (auto former = static_cast<std::size_t>(rank_.value) + world; former < storages.size(); former += world)
    beside.emplace(core::Rank{static_cast<std::int32_t>(former)}, storages[former]);
  return beside;
}

void SimulatedRank::run_io(IoQueue& queue, std::function<void()> job) {
  if (dead_ || closed_) return;
  queue.jobs.push_back({std::move(job), gpu::HostLine::current().past()});
  schedule_io(queue);
}

void SimulatedRank::schedule_io(IoQueue& queue) {
  if (queue.scheduled || queue.jobs.empty()) return;
  queue.scheduled = true;
  surroundings_.loop.schedule(delays_.up_to(queue.delay), "io", [this, &queue] {
    queue.scheduled = false;
    if (dead_ || closed_ || queue.jobs.empty()) return;
    const auto job = std::move(queue.jobs.front());
    queue.jobs.pop_front();
    {
      const gpu::HostScope scope(queue.line, job.past);
      job.run();
    }
    schedule_io(queue);
  });
}

void SimulatedRank::on_network(NetworkEvent event) {
  if (dead_ || closed_) return;
  if (auto lost = end_of_rank(event)) {
    messages::PeerLost message{lost->rank, messages::failure_of(lost->why)};
    messages::Address self{rank_, messages::Role::trainer, 0};
    deliver({self, {rank_, messages::Role::rank_supervisor, 0}, epoch(), message});
    deliver({self, {rank_, messages::Role::coordinator, 0}, epoch(), message});
  }
  const auto* arrived = std::get_if<MessageArrived>(&event);
  if (!arrived) return;
  auto envelope = messages::incoming({.peer = arrived->from, .self = rank_}, arrived->message);
  if (envelope) return deliver(*std::move(envelope));
  surroundings_.monitor.violate("MS-1: a rank says what it must not: " + envelope.error().message);
}

void SimulatedRank::close() {
  if (closed_) return;
  closed_ = true;
  for (auto* queue : {&io_, &local_io_}) {
    queue->jobs.clear();
    gpu::HostLine::current().join(queue->line.clock());
  }
  if (!network_) return;
  if (auto closed = network_->close(); !closed)
    log(Subsystem::transport).say(LogLevel::warning, closed.error().message);
}

std::vector<WaitReport> SimulatedRank::wait_reports() {
  std::vector<WaitReport> reports;
  for (auto& [address, part] : parts_) reports.push_back(part->host.report());
  return reports;
}

}  // namespace troupe::actors
