#include "actors/session/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "actors/planes/step/state_memory.hpp"
#include "actors/roles/conductor.hpp"
#include "actors/roles/coordinator.hpp"
#include "actors/session/checkpoint_tier.hpp"
#include "actors/session/context.hpp"
#include "actors/session/groups.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/rendezvous.hpp"
#include "actors/session/restore.hpp"
#include "actors/session/role_configs.hpp"
#include "actors/session/saves.hpp"
#include "actors/session/step_meter.hpp"
#include "actors/session/trainer_tensors.hpp"
#include "actors/session/work_router.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// Between the Coordinator, which knows why a job does not form, and a rank, which only knows that it does
/// not.
constexpr auto kGrace = std::chrono::seconds(1);

}  // namespace

/// What a session owns, in the order in which it is made: what is below may use what is above it.
struct Session::State {
  State(RankWorld& rank_world, SessionOptions wanted, Job planned);
  ~State();

  core::Result<void> open();
  core::Result<void> open_planes();
  RankWorld::Hooks hooks();
  void spawn_roles();
  core::Result<void> connect();
  core::Result<void> connect_local_tier();
  GroupMaker group_maker() { return {world, *rendezvous, options.join_deadline}; }
  std::chrono::nanoseconds trainer_deadline() const { return 3 * options.step_deadline; }
  void adopt();
  core::Result<void> publish_all();
  Saves::Progress progress() const { return {step, optimizer_steps}; }

  RankWorld& world;
  SessionOptions options;
  Job job;
  std::unique_ptr<Tracer> tracer;
  TrainerInbox inbox;
  std::unique_ptr<gpu::Rendezvous> rendezvous;
  core::Result<gpu::CollectiveBackend*> collectives = nullptr;  ///< the world's
  std::unique_ptr<DataPlane> data;
  RankState rank_state;                 ///< what this rank could save
  std::vector<gpu::BufferView> memory;  ///< of its pieces
  std::optional<SessionContext> context;
  std::unique_ptr<CheckpointTier> checkpoints;  ///< null without a place for them
  std::unique_ptr<LocalTier> local;             ///< null without a place for local copies
  std::unique_ptr<HostExchange> hosts;          ///< null where the data plane moves memory of the host
  std::optional<WorkRouter> router;
  std::optional<StepMeter> meter;
  std::optional<Saves> saves;
  std::vector<core::KeySet> tensor_keys;  ///< of the trainers' own tensors, per rank

  core::Step step{0};  ///< the step that is being computed, or comes next
  core::Step decided{-1};
  core::Lane lane{-1};
  bool last_microbatch = true;
  bool adopted = false;  ///< the optimizer has the parameters' values
  std::int64_t optimizer_steps = 0;
  std::uint64_t restores = 0;
  std::vector<messages::LaneLoss> losses;
};

core::Result<std::unique_ptr<Session>> Session::join(RankWorld& world, SessionOptions options,
                                                     std::vector<ParameterSpec> parameters) {
  Job job = TRY(plan_job(std::move(parameters), options.training, world.world()));
  auto state = std::make_unique<State>(world, std::move(options), std::move(job));
  TRY(state->open());
  return std::unique_ptr<Session>(new Session(std::move(state)));
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}

Session::~Session() = default;

Session::State::State(RankWorld& rank_world, SessionOptions wanted, Job planned)
    : world(rank_world),
      options(std::move(wanted)),
      job(std::move(planned)),
      inbox(static_cast<std::uint32_t>(job.buckets.size()), world.patience()) {
  if (!options.trace) return;
  tracer = std::make_unique<Tracer>([&device = world.device()] { return device.now(); });
  world.device().observe([to = tracer.get()](const gpu::TaskRecord& task) {
    to->add({core::TraceEvent::Kind::span, fmt::format("device {}", task.stream), std::string(task.label),
             task.begin, task.end, 0, 0});
  });
}

Session::State::~State() {
  if (tracer) world.device().observe({});
  world.close();
  if (data) data->abort({core::Errc::aborted, "the session ended"});
}

core::Result<void> Session::State::open() {
  TRY(open_planes());
  TRY(world.open(hooks()));
  spawn_roles();
  TRY(world.start());
  TRY(inbox.wait_welcome(options.join_deadline + 5 * kGrace));
  return connect();
}

/// Everything that this rank has for itself.
core::Result<void> Session::State::open_planes() {
  DataPlane::Options plane;
  plane.rank = world.rank();
  plane.epoch = world.epoch();
  plane.collective_deadline = options.step_deadline;
  plane.tracer = tracer.get();
  // An error here waits until the other ranks can be told of it, in connect().
  rendezvous = std::make_unique<ControlRendezvous>(world, inbox);
  collectives = world.collectives(*rendezvous);
  plane.collectives = collectives.value_or(nullptr);
  plane.post = [this](messages::Envelope envelope) { world.post(std::move(envelope)); };
  data = TRY(DataPlane::create(world.device(), job, std::move(plane)));
  TRY(check_tensors(job, options.tensors));
  TRY(options.checkpoint.load.check());
  rank_state = state_of(job, world.rank(), options.tensors);
  memory = memory_of(rank_state, *data, options.tensors);
  context.emplace(SessionContext{world, options, job, inbox, *rendezvous, *data, rank_state, memory});
  job.configuration += "\n" + options.checkpoint.load.configuration();
  if (world.storage() != nullptr) checkpoints = TRY(CheckpointTier::create(*context));
  if (world.local_storage() != nullptr) {
    local = TRY(LocalTier::create(world, *data, rank_state, memory, context->bucket_count(), options.local));
    job.configuration += "\n" + local->configuration();
  }
  if (!world.device().is_host_memory()) {
    auto make = [this] {
      return group_maker().of_hosts("loads", job.mesh.group(core::GroupKind::dp_cp, world.rank()));
    };
    hosts = std::make_unique<HostExchange>(world, std::move(make), options.step_deadline);
  }
  router.emplace(
      WorkRouter::Planes{*data, checkpoints ? &checkpoints->plane() : nullptr, local.get(), hosts.get()});
  meter.emplace(world.device(), *data, context->bucket_count(), tracer.get());
  saves.emplace(*context);
  return {};
}

RankWorld::Hooks Session::State::hooks() {
  RankWorld::Hooks hooks;
  hooks.to_trainer = [this](const messages::Envelope& envelope) { inbox.deliver(envelope); };
  hooks.perform = [this](const messages::Address& from, const Work& work) { router->perform(from, work); };
  hooks.bucket_digest = [this](std::uint32_t bucket) { return data->bucket_digest(bucket); };
  hooks.tracer = tracer.get();
  return hooks;
}

void Session::State::spawn_roles() {
  const auto rank = world.rank();
  auto address = [&](Role role, std::uint32_t index = 0) { return messages::Address{rank, role, index}; };
  if (context->is_first_rank()) {
    world.spawn(address(Role::coordinator), std::make_unique<CoordinatorMachine>(
                                                CoordinatorConfig{world.world(), options.join_deadline}));
  }
  world.spawn(address(Role::rank_supervisor), std::make_unique<RankSupervisorMachine>(supervisor_config(
                                                  job, rank, options.join_deadline + kGrace)));
  if (checkpoints) checkpoints->spawn_roles();
  if (local) local->spawn_roles();
  world.spawn(address(Role::conductor),
              std::make_unique<ConductorMachine>(conductor_config(job, rank, options.step_deadline)));
  for (std::uint32_t bucket = 0; bucket < context->bucket_count(); ++bucket) {
    world.spawn(address(Role::gradient_bucket, bucket),
                std::make_unique<GradientBucketMachine>(bucket_config(job, rank, bucket)));
    world.spawn(address(Role::parameter_shard, bucket),
                std::make_unique<ParameterShardMachine>(shard_config(job, rank, bucket)));
  }
}

/// All ranks are there: they make their groups together, and agree on what they save.
core::Result<void> Session::State::connect() {
  gpu::CollectiveBackend* backend = TRY(collectives);
  TRY(data->set_groups(TRY(group_maker().of_step(*backend, job))));
  if (local) TRY(connect_local_tier());
  tensor_keys = TRY(agree_on_tensors(*context));
  return {};
}

core::Result<void> Session::State::connect_local_tier() {
  const auto& clique = local->clique();
  if (clique.size() > 1) {
    auto name = fmt::format("replicas-{}", clique.front().value);
    local->set_group(TRY(group_maker().of_hosts(std::move(name), clique)));
  }
  if (context->is_first_rank()) {
    const auto seed = core::hash64(fmt::format("{} {} {}", world.job(), world.epoch().value, world.unique()));
    TRY(rendezvous->set("replicas/seed", std::to_string(seed)));
  }
  const auto text = TRY(rendezvous->get("replicas/seed", options.join_deadline));
  messages::ReplicaSeed message;
  std::from_chars(text.data(), text.data() + text.size(), message.seed);
  context->post(Role::replica_keeper, 0, message);
  return {};
}

void Session::State::adopt() {
  if (!adopted) data->adopt_parameters();
  adopted = true;
}

core::Rank Session::rank() const {
  return state_->world.rank();
}

core::WorldSize Session::world() const {
  return state_->world.world();
}

const Job& Session::plan() const {
  return state_->job;
}

std::vector<core::Lane> Session::lanes() const {
  std::vector<core::Lane> lanes;
  const auto& held = state_->job.lanes[static_cast<std::size_t>(rank().value)];
  for (int lane = held.first; lane < held.end(); ++lane) lanes.push_back({lane});
  return lanes;
}

gpu::BufferView Session::parameter_memory(std::uint32_t index) const {
  return state_->data->parameter(index);
}

gpu::BufferView Session::gradient_memory(std::uint32_t index) const {
  return state_->data->gradient(index, state_->lane);
}

core::Result<gpu::StreamView> Session::compute_stream() {
  return state_->data->compute_stream();
}

core::Result<void> Session::begin_step(double learning_rate) {
  auto& s = *state_;
  if (auto failure = s.inbox.failure()) return tl::unexpected(*failure);
  TRY(s.saves->wait_tensors());
  s.adopt();
  s.meter->begin_step(s.step);
  s.losses.clear();
  const messages::StepBegan begun{s.step, learning_rate};
  s.context->post(Role::conductor, 0, begun);
  s.context->post(Role::rank_supervisor, 0, begun);
  for (std::uint32_t bucket = 0; bucket < s.context->bucket_count(); ++bucket)
    s.context->post(Role::gradient_bucket, bucket, begun);
  return {};
}

core::Result<void> Session::begin_lane(core::Lane lane) {
  auto& s = *state_;
  // The lane before may still be on its way into the partial sums, in a slot that this lane writes.
  if (!s.losses.empty() && s.job.options.numerics == core::Numerics::ordered) {
    TRY(s.meter->exposed(
        [&] { return s.inbox.wait_merged(s.step, s.losses.back().lane, s.trainer_deadline()); }));
  }
  s.lane = lane;
  begin_microbatch(0);
  return {};
}

void Session::begin_microbatch(int index) {
  state_->last_microbatch = index + 1 == state_->job.options.microbatches;
}

core::Result<void> Session::before_use(std::uint32_t parameter) {
  auto& s = *state_;
  const auto bucket = s.job.parameters[parameter].bucket;
  if (s.inbox.is_published(bucket, s.decided)) return {};
  return s.meter->exposed([&] { return s.inbox.wait_published(bucket, s.decided, s.trainer_deadline()); });
}

void Session::gradient_ready(std::uint32_t parameter) {
  auto& s = *state_;
  if (!s.last_microbatch) return;
  const auto bucket = s.job.parameters[parameter].bucket;
  s.meter->gradient_ready(bucket, s.job.specs[parameter].name);
  s.data->mark_computed(bucket);
  s.context->post(Role::gradient_bucket, bucket, messages::GradientReady{s.step, s.lane, parameter});
}

void Session::end_lane(double loss) {
  auto& s = *state_;
  s.losses.push_back({s.lane, loss});
  for (std::uint32_t bucket = 0; bucket < s.context->bucket_count(); ++bucket)
    s.context->post(Role::gradient_bucket, bucket, messages::LaneEnded{s.step, s.lane});
}

core::Result<StepOutcome> Session::finish_step(std::string refusal, std::uint32_t wishes) {
  auto& s = *state_;
  s.data->mark_read();
  s.context->post(Role::rank_supervisor, 0,
                  messages::BackwardFinished{s.step, s.losses, std::move(refusal), wishes});
  messages::StepDecided decided;
  TRY(s.meter->exposed([&]() -> core::Result<void> {
    decided = TRY(s.inbox.wait_decided(s.step, s.trainer_deadline()));
    return {};
  }));
  s.decided = s.step;
  if (!s.job.options.overlap) TRY(s.meter->exposed([&] { return s.publish_all(); }));
  StepOutcome outcome;
  outcome.step = s.step;
  outcome.committed = decided.commit;
  outcome.reason = decided.reason;
  outcome.losses = decided.verdict.losses;
  for (double loss : outcome.losses) outcome.loss += loss;
  outcome.loss /= static_cast<double>(outcome.losses.size());
  outcome.gradient_norm = decided.verdict.gradient_norm;
  outcome.clip_factor = decided.clip_factor;
  outcome.wishes = decided.verdict.wishes;
  outcome.times = s.meter->end_step();
  s.optimizer_steps += decided.commit ? 1 : 0;
  s.step.value += 1;
  return outcome;
}

core::Result<std::uint64_t> Session::save(const core::Value& common,
                                          const std::vector<core::ManifestObject>& objects) {
  if (auto failure = state_->inbox.failure()) return tl::unexpected(*failure);
  if (!state_->checkpoints) {
    return core::fail(
        core::Errc::unavailable,
        "this job has no directory for checkpoints; give ProcessWorldOptions::checkpoint_directory");
  }
  state_->adopt();
  return state_->saves->begin(state_->progress(), common, objects);
}

core::Result<std::uint64_t> Session::save_local(const core::Value& common) {
  if (auto failure = state_->inbox.failure()) return tl::unexpected(*failure);
  if (!state_->local) {
    return core::fail(
        core::Errc::unavailable,
        "this job has no place for local copies; give ProcessWorldOptions::local_checkpoint_directory");
  }
  state_->adopt();
  return state_->saves->begin_local(state_->progress(), common);
}

std::vector<SaveResult> Session::take_saves() {
  return state_->saves->take();
}

core::Result<void> Session::wait_saves() {
  return state_->saves->wait();
}

std::vector<SaveResult> Session::take_local_saves() {
  return state_->saves->take_local();
}

core::Result<void> Session::wait_local_saves() {
  return state_->saves->wait_local();
}

core::Result<std::optional<Restored>> Session::restore(const RestoreOptions& options) {
  auto& s = *state_;
  if (s.step.value != 0 || s.saves->has_begun())
    return core::fail(core::Errc::invalid_argument,
                      "a session is restored before its first step, not after step {}", s.step.value);
  Restore restore(*s.context, {s.local.get(), s.hosts.get(), s.tensor_keys}, options, s.restores++);
  auto loaded = TRY(restore.run());
  if (!loaded) return std::optional<Restored>{};
  s.adopted = true;
  s.step = loaded->restored.step;
  s.optimizer_steps = loaded->optimizer_steps;
  return std::optional(std::move(loaded->restored));
}

core::Result<void> Session::State::publish_all() {
  for (std::uint32_t bucket = 0; bucket < context->bucket_count(); ++bucket)
    TRY(inbox.wait_published(bucket, decided, trainer_deadline()));
  return decided.value < 0 ? core::Result<void>{} : inbox.wait_committed(decided, trainer_deadline());
}

core::Result<void> Session::publish_all() {
  return state_->publish_all();
}

core::Result<void> Session::leave() {
  TRY(publish_all());
  TRY(wait_saves());
  TRY(wait_local_saves());
  state_->context->post(Role::rank_supervisor, 0, messages::Leave{rank()});
  TRY(state_->inbox.wait_farewell(state_->trainer_deadline()));
  state_->world.close();
  return {};
}

core::Error Session::abandon(core::Error reason) {
  return state_->context->abandon(std::move(reason));
}

void Session::stop_tracing() {
  if (!state_->tracer) return;
  state_->tracer->stop();
  state_->world.device().observe({});
}

std::vector<core::TraceEvent> Session::take_trace() {
  return state_->tracer ? state_->tracer->take() : std::vector<core::TraceEvent>{};
}

std::string Session::waits() {
  const auto waiting = state_->inbox.waiting_for();
  return fmt::format("trainer @ rank {}: {}\n", rank().value,
                     waiting.empty() ? "computes" : "waits for " + waiting) +
         render(state_->world.wait_reports(), state_->world.device().now());
}

std::uint64_t Session::message_count() const {
  return state_->world.message_count();
}

const std::vector<double>& Session::launch_latencies_us() const {
  return state_->meter->launch_latencies_us();
}

std::size_t Session::device_bytes() const {
  return state_->data->allocated_bytes();
}

core::Step Session::next_step() const {
  return state_->step;
}

}  // namespace troupe::actors
