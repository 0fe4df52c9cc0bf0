#include "actors/shell/process_rank.hpp"
#include "actors/shell/rank_places.hpp"
#include "actors/shell/rank_start.hpp"
#include "actors/world/engine.hpp"
#include "actors/world/epochs.hpp"
#include "actors/world/exit_status.hpp"
#include "actors/world/host_identity.hpp"
#include "actors/world/io_worker.hpp"
#include "actors/world/meeting_point.hpp"
#include "actors/world/own_address.hpp"
#include "actors/world/storage/holds.hpp"
#include "actors/world/storage/posix.hpp"

#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <utility>

#include "actors/world/signal_watcher.hpp"
#include "actors/world/thread_limit.hpp"
#include "actors/world/transport/tcp.hpp"
#include "core/errors.hpp"
#include "gpu/collective/open.hpp"
#include "gpu/devices.hpp"
#include "messages/border.hpp"
#include "posix/entropy.hpp"

namespace troupe::actors {

using messages::Role;

struct ProcessRank::State {
  ProcessWorldOptions options;
  JobEnvironment environment;
  LogOptions log_options;
  std::unique_ptr<Log> log;
  std::unique_ptr<Log> log_before;  ///< of the epoch before, for those that still have a way to it
  EngineFacts facts;
  bool has_own_environment = false;  ///< the caller's, instead of the process's
  JobToken token{};
  std::string device_name;
  // The stage comes before the device, which may fail, and say so on the stage, as long as it exists.
  std::shared_mutex stage_mutex;  // guards stage, and what form_anew() replaces: users share it
  std::unique_ptr<CafStage> stage;
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::Device> host_device;  ///< null: `device` itself has host memory
  ThreadPatience patience;
  std::unique_ptr<gpu::CollectiveBackend> backend;
  std::unique_ptr<gpu::CollectiveBackend> host_backend;  ///< of host_device, once requested
  Hooks hooks;
  bool is_used = false;                         ///< in this epoch there was a session, or an attempt to join
  std::optional<EpochFiles> files;              ///< the launcher's, if it keeps processes over a failure
  std::atomic<bool> is_member{false};           ///< a step was begun in this epoch
  bool has_come_over = false;                   ///< from another epoch, or from having no rank
  std::optional<EpochWatch> forming;            ///< of the epoch that this rank has come over to
  std::unique_ptr<MeetingPoint> meeting_point;  ///< if torchrun's agent has the port
  std::unique_ptr<TcpNetwork> network;          ///< null in a world of one; set before there are actors
  std::unique_ptr<SignalWatcher> watcher;
  OwnerClaim owner;  ///< of the storage
  std::unique_ptr<Storage> storage;
  std::unique_ptr<Storage> local_storage;
  std::mutex io_mutex;  // guards io and local_io
  std::unique_ptr<IoWorker> io;
  std::unique_ptr<IoWorker> local_io;
  std::uint64_t messages_before_close = 0;
  std::set<core::Rank> distrusted;  ///< sent what they must not; only the network's thread accesses it

  bool is_one_host() const { return environment.local_world == environment.world.value; }

  Logger said_by(Subsystem of) const { return {*log, of}; }
  /// For what is below the actors.
  std::function<void(std::string_view)> warnings_of(Subsystem of) const {
    return [logger = said_by(of)](std::string_view line) { logger.say(LogLevel::warning, line); };
  }

  RankPlace place() const {
    auto host = host_identity();
    return {host.id, std::move(host.name), environment.local_rank, environment.local_world,
            facts.local_source};
  }

  core::Result<TcpOptions> network_options() {
    TcpOptions chosen;
    chosen.router.job = environment.job + "." + std::to_string(environment.epoch.value);
    chosen.router.self = environment.rank;
    chosen.router.world = environment.world;
    chosen.router.token = token;
    chosen.address = environment.control_host;
    chosen.port = environment.control_port;
    chosen.spans_hosts = !is_one_host();
    chosen.log = said_by(Subsystem::transport);
    if (facts.agent_key.empty()) return chosen;
    meeting_point = std::make_unique<MeetingPoint>(environment, facts.agent_key, chosen.log);
    chosen.find = [this](std::chrono::nanoseconds limit) { return meeting_point->find(limit); };
    if (environment.rank.value != 0) return chosen;
    chosen.address = TRY(meeting_point->host_to_listen_at());
    chosen.port = 0;
    chosen.announce = [this](std::uint16_t port) { return meeting_point->announce(port); };
    chosen.all_have_come = [this] { meeting_point->close(); };
    return chosen;
  }
};

namespace {

/// What a rank starts at least: streams, actors, the network, signals, files.
constexpr int kThreads = 12;

}  // namespace

core::Result<std::unique_ptr<ProcessRank>> ProcessRank::create(ProcessWorldOptions options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  state->has_own_environment = static_cast<bool>(state->options.environment);
  TRY(gpu::check_collectives(state->options.collectives));
  TRY(check_threads(kThreads));
  if (!state->has_own_environment) {
    state->options.environment = [] { return detect_environment(process_variables()); };
    state->facts = engine_facts(process_variables());
    if (state->options.stays) state->files = EpochFiles::of(process_variables());
    const bool can_stand_by = state->files && state->options.device == "host" && !state->options.open_device;
    state->has_come_over = is_spare(process_variables()) && can_stand_by;
  }
  state->environment = TRY(state->has_come_over ? stand_by(*state->files) : state->options.environment());
  const auto& place = state->environment;
  auto log = TRY(log_options(process_variables(), place.rank, place.epoch));
  log.sentences = state->options.log;
  state->log_options = log;
  state->log = TRY(Log::open(std::move(log)));
  state->token = TRY(token_of(state->environment, state->facts));
  std::unique_ptr<ProcessRank> world(new ProcessRank(std::move(state)));
  world->state_->watcher =
      std::make_unique<SignalWatcher>(SIGUSR1, [world = world.get()] { world->dump_waits(); });
  TRY(world->open_device());
  if (!world->device().is_host_memory())
    world->state_->host_device = TRY(gpu::open_device("host", world->on_device_failure()));
  // Communicators of NCCL that wait for a lost rank may keep their device for good.
  if (!world->device().is_host_memory()) world->state_->files.reset();
  const auto& checkpoints = world->state_->options.checkpoint_directory;
  if (!checkpoints.empty()) {
    world->state_->storage = TRY(PosixStorage::open_or_make(checkpoints));
    std::string said;
    world->state_->owner = TRY(OwnerClaim::take(checkpoints, owner_name(world->environment()), said));
    if (!said.empty() && world->rank().value == 0)
      world->log(Subsystem::checkpoint).say(LogLevel::warning, said);
  }
  const auto& local = world->state_->options.local_checkpoint_directory;
  if (!local.empty()) {
    world->state_->local_storage = TRY(PosixStorage::open_or_make(directory_of_rank(local, world->rank())));
  }
  world->open_io();
  if (world->state_->has_come_over) world->declare(Membership::State::forming);
  return world;
}

void ProcessRank::open_io() {
  std::lock_guard lock(state_->io_mutex);
  if (state_->storage && !state_->io) state_->io = std::make_unique<IoWorker>();
  if (state_->local_storage && !state_->local_io) state_->local_io = std::make_unique<IoWorker>();
}

ProcessRank::ProcessRank(std::unique_ptr<State> state) : state_(std::move(state)) {}

ProcessRank::~ProcessRank() {
  state_->watcher.reset();
  close();
}

const JobEnvironment& ProcessRank::environment() const {
  return state_->environment;
}
const std::string& ProcessRank::device_name() const {
  return state_->device_name;
}
core::Rank ProcessRank::rank() const {
  return state_->environment.rank;
}
core::WorldSize ProcessRank::world_size() const {
  return state_->environment.world;
}
core::Epoch ProcessRank::epoch() const {
  return state_->environment.epoch;
}
const std::string& ProcessRank::job() const {
  return state_->environment.job;
}
std::uint64_t ProcessRank::unique() {
  return posix::entropy();
}
gpu::Device& ProcessRank::device() {
  return *state_->device;
}
gpu::Device& ProcessRank::host_device() {
  return state_->host_device ? *state_->host_device : *state_->device;
}
TrainerPatience& ProcessRank::patience() {
  return state_->patience;
}
CafStage* ProcessRank::stage() {
  return state_->stage.get();
}

/// A rank without its device can only report that; its streams report nothing any more.
gpu::DeviceFailed ProcessRank::on_device_failure() {
  return [this](const core::Error& error) {
    const messages::Address self{rank(), Role::rank_supervisor, 0};
    post({self, self, epoch(),
          messages::RankFailed{rank(),
                               {true, error.code, fmt::format("rank {}: {}", rank().value, error.message)}}});
  };
}

core::Result<void> ProcessRank::open_device() {
  const auto& options = state_->options;
  state_->device_name = options.device;
  const auto on_failure = on_device_failure();
  if (options.open_device) {
    state_->device = TRY(options.open_device(on_failure));
    return {};
  }
  state_->device_name = TRY(device_of_rank(options.device, environment(), log(Subsystem::device)));
  state_->device = TRY(gpu::open_device(state_->device_name, on_failure));
  return {};
}

core::Result<std::string> ProcessRank::gloo_host() const {
  if (!state_->options.gloo_host.empty()) return state_->options.gloo_host;
  // When nothing from outside needs to reach them.
  if (state_->is_one_host()) return "127.0.0.1";
  auto address = TRY(own_address_towards(environment().control_host, environment().control_port));
  // If all ranks reached rank 0 on the loopback interface, they reach each other there.
  if (!is_loopback(address) || is_loopback(environment().control_host)) return address;
  return core::fail(core::Errc::invalid_argument,
                    "ranks on several hosts reach each other over Gloo, and this host's address on the way "
                    "to rank 0 ({}) is {}, which leads nowhere else; give ProcessWorldOptions::gloo_host",
                    environment().control_host, address);
}

core::Result<gpu::CollectiveBackend*> ProcessRank::collectives(gpu::Rendezvous& rendezvous) {
  state_->host_backend.reset();
  if (state_->options.open_collectives) {
    state_->backend = TRY(state_->options.open_collectives(*state_->device, rendezvous));
    return state_->backend.get();
  }
  gpu::CollectiveOptions options;
  if (state_->options.collectives == "gloo") options.gloo_host = TRY(gloo_host());
  options.host = host_identity().id;
  options.address_of_host = [this] { return gloo_host(); };
  options.register_memory = state_->options.register_memory;
  options.log = state_->warnings_of(Subsystem::collectives);
  state_->backend = TRY(gpu::open_collectives(state_->options.collectives, *state_->device,
                                              state_->device_name, rendezvous, options));
  if (!state_->has_own_environment) {
    state_->backend = std::make_unique<PlacedBackend>(std::move(state_->backend), rendezvous, state_->place(),
                                                      world_size());
  }
  return state_->backend.get();
}

core::Result<gpu::CollectiveBackend*> ProcessRank::host_collectives(gpu::Rendezvous& rendezvous) {
  if (!state_->host_device) return state_->backend.get();
  if (state_->host_backend) return state_->host_backend.get();
  gpu::CollectiveOptions options;
  options.host = host_identity().id;
  options.address_of_host = [this] { return gloo_host(); };
  state_->host_backend =
      TRY(gpu::open_collectives("automatic", *state_->host_device, "host", rendezvous, options));
  return state_->host_backend.get();
}

bool ProcessRank::is_used() const {
  return state_->is_used;
}

core::Result<void> ProcessRank::open(Hooks hooks) {
  state_->is_used = true;
  state_->hooks = std::move(hooks);
  state_->distrusted.clear();
  open_io();
  if (world_size().value > 1) {
    state_->network = std::make_unique<TcpNetwork>(
        TRY(state_->network_options()), [this](NetworkEvent event) { on_network(std::move(event)); });
  }
  CafStageOptions options;
  options.rank = rank();
  options.epoch = epoch();
  options.workers = state_->options.actor_threads;
  // Launches on a GPU may wait for a connection, and must come from one thread.
  if (state_->device->kind() == gpu::DeviceKind::cuda) options.detached = {Role::conductor};
  options.tracer = state_->hooks.tracer;
  options.profiler = state_->device->profiler();
  options.now = [this] { return state_->device->now(); };
  options.send_remote = [this](const messages::Envelope& envelope) { return send(envelope); };
  options.to_trainer = [this](const messages::Envelope& envelope) {
    if (std::holds_alternative<messages::Farewell>(envelope.body)) declare(Membership::State::left);
    state_->hooks.to_trainer(envelope);
  };
  options.perform = state_->hooks.perform;
  options.log = log(Subsystem::actors);
  auto stage = TRY(CafStage::create(std::move(options)));
  std::lock_guard lock(state_->stage_mutex);
  state_->stage = std::move(stage);
  return {};
}

void ProcessRank::spawn(messages::Address address, std::unique_ptr<Machine> machine) {
  // A thread that asks for the waits at the same time reads what this writes.
  std::lock_guard lock(state_->stage_mutex);
  state_->stage->spawn(address, std::move(machine));
}

core::Result<void> ProcessRank::start() {
  if (state_->files && state_->has_come_over)
    state_->forming.emplace(*state_->files, epoch(), [this] { leave_forming(); });
  if (state_->network) TRY(state_->network->start());
  state_->stage->start();
  return {};
}

/// The network's thread goes on, whatever a message leads to here.
void ProcessRank::on_network(NetworkEvent event) {
  supervise([&] { hear(std::move(event)); },
            [&](std::string_view what) {
              on_device_failure()({core::Errc::internal, fmt::format("the control network: {}", what)});
            });
}

void ProcessRank::hear(NetworkEvent event) {
  if (auto loss = end_of_rank(event)) tell_loss(*loss);
  const auto* arrived = std::get_if<MessageArrived>(&event);
  if (!arrived || state_->distrusted.contains(arrived->from)) return;
  auto envelope = messages::incoming({.peer = arrived->from, .self = rank()}, arrived->message);
  if (envelope) return post(std::move(*envelope));
  // Anything waiting for what it should have said would wait in vain.
  state_->distrusted.insert(arrived->from);
  log(Subsystem::transport).say(LogLevel::error, envelope.error().message);
  tell_loss({arrived->from, std::move(envelope).error()});
}

void ProcessRank::tell_loss(const RankLost& loss) {
  const messages::PeerLost message{loss.rank, messages::failure_of(loss.why)};
  for (auto role : {Role::rank_supervisor, Role::coordinator}) {
    const messages::Address to{rank(), role, 0};
    post({to, to, epoch(), message});
  }
}

core::Result<void> ProcessRank::send(const messages::Envelope& envelope) {
  if (!state_->network) return {};
  return check_sent(envelope, state_->network->send(envelope.to.rank, messages::outgoing(envelope)));
}

/// A rank whose trainer takes steps has all its groups, so that whatever it waits for ends with the loss of a
/// peer.
void ProcessRank::hear_own(const messages::Envelope& envelope) {
  if (state_->is_member || !std::holds_alternative<messages::StepBegan>(envelope.body)) return;
  state_->is_member = true;
  if (state_->forming) state_->forming->stop();
  declare(Membership::State::training);
}

/// The launcher has gone on to another epoch than the one which this rank is forming.
void ProcessRank::leave_forming() {
  const core::Error over{core::Errc::peer_lost,
                         fmt::format("epoch {} ended before it was formed", epoch().value)};
  if (state_->network) state_->network->give_up(over);
  // As if rank 0 were lost, which alone tells the others that a rank is.
  const messages::Address self{rank(), Role::rank_supervisor, 0};
  post({self, self, epoch(), messages::PeerLost{core::Rank{0}, messages::failure_of(over)}});
}

void ProcessRank::declare(Membership::State state) {
  if (!state_->files) return;
  if (const auto told = state_->files->declare_membership({epoch(), state}); !told)
    log(Subsystem::session).say(LogLevel::warning, told.error().message);
}

core::Result<void> ProcessRank::form_anew(const core::Error& why) {
  constexpr std::chrono::seconds kPatience{2};
  if (state_->stage) {
    return core::fail(core::Errc::invalid_argument,
                      "a session is open in this world; destroy it before the next epoch is formed");
  }
  if (exit_code_of(why) != kExitFenced) return tl::unexpected(why);
  auto next = state_->environment;
  if (state_->options.next_environment) {
    auto given = state_->options.next_environment(state_->environment);
    if (!given) return tl::unexpected(why);
    next = std::move(*given);
  } else {
    // The launcher does not know yet that a process would stay which has just been started.
    if (!state_->files || (!state_->is_member && !state_->has_come_over)) return tl::unexpected(why);
    if (state_->is_member) declare(Membership::State::waiting);
    const auto told = state_->files->await_epoch_after(epoch(), kPatience);
    if (!told || !state_->files->rank_in(*told)) return tl::unexpected(why);
    place_in(*state_->files, *told, next);
  }
  log(Subsystem::session).info("this process goes on in epoch {}: {}", next.epoch.value, why.message);
  state_->log_options.epoch = next.epoch;
  auto log = TRY(Log::open(state_->log_options));
  // A thread that asks for the waits at the same time reads what this writes.
  std::lock_guard lock(state_->stage_mutex);
  state_->log_before = std::exchange(state_->log, std::move(log));
  state_->environment = std::move(next);
  state_->is_member = false;
  state_->is_used = false;
  state_->has_come_over = true;
  declare(Membership::State::forming);
  return {};
}

void ProcessRank::post(messages::Envelope envelope) {
  hear_own(envelope);
  std::shared_lock lock(state_->stage_mutex);
  if (state_->stage) state_->stage->post(std::move(envelope));
}

void ProcessRank::blame(const messages::Address& role, std::string what) {
  std::shared_lock lock(state_->stage_mutex);
  if (state_->stage) state_->stage->blame(role, std::move(what));
}

void ProcessRank::close() {
  state_->is_used = true;
  state_->forming.reset();
  std::unique_ptr<CafStage> stage;
  {
    std::lock_guard lock(state_->stage_mutex);
    stage = std::move(state_->stage);
  }
  // Outside the lock: actors that are still running may post, to no effect.
  if (stage) state_->messages_before_close = stage->message_count();
  stage.reset();
  std::unique_ptr<IoWorker> io;
  std::unique_ptr<IoWorker> local_io;
  {
    std::lock_guard lock(state_->io_mutex);
    io = std::move(state_->io);
    local_io = std::move(state_->local_io);
  }
  io.reset();
  local_io.reset();
  if (state_->network) {
    if (auto closed = state_->network->close(); !closed)
      log(Subsystem::transport).say(LogLevel::warning, closed.error().message);
  }
  state_->network.reset();
}

Storage* ProcessRank::storage() {
  return state_->storage.get();
}

void ProcessRank::run_io(std::function<void()> job) {
  std::lock_guard lock(state_->io_mutex);
  if (state_->io) state_->io->run(std::move(job));
}

Storage* ProcessRank::local_storage() {
  return state_->local_storage.get();
}

void ProcessRank::run_local_io(std::function<void()> job) {
  std::lock_guard lock(state_->io_mutex);
  if (state_->local_io) state_->local_io->run(std::move(job));
}

Logger ProcessRank::log(Subsystem of) const {
  return state_->said_by(of);
}

std::vector<WaitReport> ProcessRank::wait_reports() {
  std::shared_lock lock(state_->stage_mutex);
  return state_->stage ? state_->stage->wait_reports(std::chrono::milliseconds(500))
                       : std::vector<WaitReport>{};
}

void ProcessRank::dump_waits() {
  const auto reports = wait_reports();
  std::shared_lock lock(state_->stage_mutex);
  // Without reports there may be no device yet.
  state_->log->answer(Subsystem::actors,
                      "who waits for whom, rank " + std::to_string(rank().value) + ":\n" +
                          (reports.empty() ? "no actors are there" : render(reports, state_->device->now())));
}

std::uint64_t ProcessRank::message_count() const {
  std::shared_lock lock(state_->stage_mutex);
  return state_->stage ? state_->stage->message_count() : state_->messages_before_close;
}

}  // namespace troupe::actors
