#include "actors/shell/process_rank.hpp"

#include <signal.h>

#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/shell/process_rank_state.hpp"
#include "actors/world/host_identity.hpp"
#include "actors/world/own_address.hpp"
#include "actors/world/storage/posix.hpp"
#include "actors/world/thread_limit.hpp"
#include "core/errors.hpp"
#include "gpu/collective/open.hpp"
#include "messages/border.hpp"
#include "posix/entropy.hpp"

namespace troupe::actors {

using messages::Role;

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
    state->has_come_over = is_spare(process_variables()) && state->files && !state->options.open_device;
  }
  std::unique_ptr<ProcessRank> world(new ProcessRank(std::move(state)));
  TRY(world->take_place());
  const auto& checkpoints = world->state_->options.checkpoint_directory;
  if (!checkpoints.empty()) {
    world->state_->storage = TRY(PosixStorage::open_or_make(checkpoints));
    std::string said;
    world->state_->owner = TRY(OwnerClaim::take(checkpoints, owner_name(world->environment()), said));
    if (!said.empty() && world->rank().value == 0)
      world->log(Subsystem::checkpoint).say(LogLevel::warning, said);
  }
  TRY(world->open_local_storage());
  world->open_io();
  if (world->state_->has_come_over) world->declare(Membership::State::forming);
  return world;
}

/// A spare has its device, with the kernels, before it says that it stands by.
core::Result<void> ProcessRank::take_place() {
  auto& s = *state_;
  if (s.has_come_over) {
    s.environment = TRY(place_of_spare());
    TRY(open_devices({}));
    TRY(stand_by(*s.files, s.environment));
  } else {
    s.environment = TRY(s.options.environment());
  }
  auto log = TRY(log_options(process_variables(), rank(), epoch()));
  log.sentences = s.options.log;
  s.log_options = log;
  s.log = TRY(Log::open(std::move(log)));
  s.token = TRY(token_of(s.environment, s.facts));
  s.open_record();
  s.watcher = std::make_unique<SignalWatcher>(SIGUSR1, [this] { dump_waits(); });
  return s.device ? core::Result<void>{} : open_devices(s.said_by(Subsystem::device));
}

core::Result<void> ProcessRank::open_local_storage() {
  const auto& local = state_->options.local_checkpoint_directory;
  state_->storages_beside.clear();
  if (!local.empty())
    state_->local_storage = TRY(PosixStorage::open_or_make(directory_of_rank(local, rank())));
  return {};
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
          messages::RankFailed{
              rank(),
              {true, error.code, fmt::format("rank {}: {}", rank().value, error.message), error.missing}}});
  };
}

core::Result<void> ProcessRank::open_devices(const Logger& log) {
  auto& s = *state_;
  const auto on_failure = on_device_failure();
  s.device_name = s.options.device;
  if (s.options.open_device) {
    s.device = TRY(s.options.open_device(on_failure));
  } else {
    s.device_name = TRY(device_of_rank(s.options.device, s.environment, log));
    s.device = TRY(gpu::open_device(s.device_name, on_failure));
  }
  if (!s.device->is_host_memory()) s.host_device = TRY(gpu::open_device("host", on_failure));
  return {};
}

core::Result<std::string> ProcessRank::tcp_host() const {
  if (!state_->options.tcp_host.empty()) return state_->options.tcp_host;
  // When nothing from outside needs to reach them.
  if (state_->is_one_host()) return "127.0.0.1";
  auto address = TRY(own_address_towards(environment().control_host, environment().control_port));
  // If all ranks reached rank 0 on the loopback interface, they reach each other there.
  if (!is_loopback(address) || is_loopback(environment().control_host)) return address;
  return core::fail(core::Errc::invalid_argument,
                    "ranks on several hosts reach each other over TCP, and this host's address on the way "
                    "to rank 0 ({}) is {}, which leads nowhere else; give ProcessWorldOptions::tcp_host",
                    environment().control_host, address);
}

core::Result<gpu::CollectiveBackend*> ProcessRank::collectives(gpu::Rendezvous& rendezvous) {
  state_->host_backend.reset();
  if (state_->options.open_collectives) {
    state_->backend = TRY(state_->options.open_collectives(*state_->device, rendezvous));
    return state_->backend.get();
  }
  gpu::CollectiveOptions options;
  if (state_->options.collectives == "tcp") options.tcp_host = TRY(tcp_host());
  options.host = host_identity().id;
  options.address_of_host = [this] { return tcp_host(); };
  options.key = state_->token;
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
  options.address_of_host = [this] { return tcp_host(); };
  options.key = state_->token;
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
  if (state_->files && state_->has_come_over) watch_forming();
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

void ProcessRank::post(messages::Envelope envelope) {
  hear_own(envelope);
  std::shared_lock lock(state_->stage_mutex);
  if (state_->stage) state_->stage->post(std::move(envelope));
}

/// Without the lock, which what is run may ask for: the same thread opens and closes the stage.
void ProcessRank::post_and_run(messages::Envelope envelope) {
  hear_own(envelope);
  if (state_->stage) state_->stage->post_and_run(std::move(envelope));
}

void ProcessRank::blame(const messages::Address& role, std::string what) {
  std::shared_lock lock(state_->stage_mutex);
  if (state_->stage) state_->stage->blame(role, std::move(what));
}

void ProcessRank::close() {
  state_->is_used = true;
  state_->forming.reset();
  state_->staying.reset();
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

std::map<core::Rank, Storage*> ProcessRank::local_storages_beside() {
  std::map<core::Rank, Storage*> beside;
  const auto& local = state_->options.local_checkpoint_directory;
  for (const auto other : local.empty() ? std::vector<core::Rank>{} : ranks_with_directories(local)) {
    if (other == rank()) continue;
    auto& storage = state_->storages_beside[other];
    if (storage == nullptr) {
      auto opened = PosixStorage::open(directory_of_rank(local, other));
      if (!opened) continue;
      storage = *std::move(opened);
    }
    beside.emplace(other, storage.get());
  }
  return beside;
}

void ProcessRank::run_local_io(std::function<void()> job) {
  std::lock_guard lock(state_->io_mutex);
  if (state_->local_io) state_->local_io->run(std::move(job));
}

std::shared_ptr<gpu::FlightRecorder> ProcessRank::recorder() {
  return state_->recorder;
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
