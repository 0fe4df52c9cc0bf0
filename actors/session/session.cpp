#include "actors/session/session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "actors/coordinator/machine.hpp"
#include "actors/engine/state_memory.hpp"
#include "actors/session/casting.hpp"
#include "actors/session/rendezvous.hpp"
#include "core/check.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// Between who knows why a job does not form, the Coordinator, and who only knows that it does not.
constexpr auto kGrace = std::chrono::seconds(1);
constexpr std::string_view kTrainer = "trainer";
constexpr std::string_view kWaits = "waits for the runtime";

}  // namespace

core::Result<std::unique_ptr<Session>> Session::join(RankWorld& world, SessionOptions options,
                                                     std::vector<ParameterSpec> parameters) {
  Job job = TRY(plan_job(std::move(parameters), options.training, world.world()));
  std::unique_ptr<Session> session(new Session(world, std::move(options), std::move(job)));
  TRY(session->open());
  return session;
}

Session::Session(RankWorld& world, SessionOptions options, Job job)
    : world_(world),
      options_(std::move(options)),
      job_(std::move(job)),
      port_(static_cast<std::uint32_t>(job_.buckets.size()), world.patience()),
      last_gradient_(job_.buckets.size()) {
  if (!options_.trace) return;
  tracer_ = std::make_unique<Tracer>([&device = world.device()] { return device.now(); });
  world.device().observe([tracer = tracer_.get()](const gpu::TaskRecord& task) {
    tracer->add({core::TraceEvent::Kind::span, fmt::format("device {}", task.stream), std::string(task.label),
                 task.begin, task.end, 0, 0});
  });
}

Session::~Session() {
  end_profile();
  if (tracer_) world_.device().observe({});
  world_.close();
  if (data_plane_) {
    data_plane_->perform({}, AbortCollectives{{true, core::Errc::aborted, "the session ended"}});
  }
}

core::Result<void> Session::open() {
  DataPlane::Options plane;
  plane.rank = world_.rank();
  plane.epoch = world_.epoch();
  plane.collective_deadline = options_.step_deadline;
  plane.tracer = tracer_.get();
  // The error of collectives that there are not waits until the others can be told.
  rendezvous_ = std::make_unique<ControlRendezvous>(world_, port_);
  collectives_ = world_.collectives(*rendezvous_);
  plane.collectives = collectives_.value_or(nullptr);
  plane.post = [this](messages::Envelope envelope) { world_.post(std::move(envelope)); };
  data_plane_ = TRY(DataPlane::create(world_.device(), job_, std::move(plane)));
  TRY(check_tensors(job_, options_.tensors));
  TRY(options_.checkpoint.load.check());
  state_ = state_of(job_, world_.rank(), options_.tensors);
  memory_ = memory_of(state_, *data_plane_, options_.tensors);
  RankWorld::Ports ports;
  ports.to_trainer = [this](const messages::Envelope& envelope) { port_.deliver(envelope); };
  TRY(open_checkpoints());
  job_.configuration += "\n" + options_.checkpoint.load.configuration();
  TRY(open_local_tier());
  if (!world_.device().is_host_memory()) {
    auto make = [this] {
      return make_host_group("loads", job_.mesh.group(core::GroupKind::dp_cp, world_.rank()));
    };
    host_exchange_ = std::make_unique<HostExchange>(world_, std::move(make), options_.step_deadline);
  }
  ports.perform = [this](const messages::Address& from, const Work& work) {
    const auto* end = std::get_if<AbortCollectives>(&work);
    if (end != nullptr && host_exchange_) host_exchange_->abort(messages::error_of(end->reason));
    if (local_ && local_->perform(from, work)) return;
    const auto* checkpoint = std::get_if<CheckpointWork>(&work);
    if (checkpoint == nullptr) {
      data_plane_->perform(from, work);
    } else {
      checkpoint_plane_->perform(*checkpoint);
    }
  };
  ports.bucket_digest = [this](std::uint32_t bucket) { return data_plane_->bucket_digest(bucket); };
  ports.tracer = tracer_.get();
  TRY(world_.open(std::move(ports)));
  spawn_parts();
  TRY(world_.start());
  TRY(port_.wait_welcome(options_.join_deadline + 5 * kGrace));
  return connect_groups();
}

void Session::spawn_parts() {
  auto rank = world_.rank();
  auto address = [&](Role role, std::uint32_t index = 0) { return messages::Address{rank, role, index}; };
  if (rank.value == 0) {
    world_.spawn(address(Role::coordinator), std::make_unique<CoordinatorMachine>(
                                                 CoordinatorConfig{world_.world(), options_.join_deadline}));
  }
  world_.spawn(address(Role::rank_supervisor), std::make_unique<RankSupervisorMachine>(supervisor_config(
                                                   job_, rank, options_.join_deadline + kGrace)));
  if (checkpoint_plane_) spawn_checkpoint_roles();
  if (local_) local_->spawn_roles();
  world_.spawn(address(Role::conductor),
               std::make_unique<ConductorMachine>(conductor_config(job_, rank, options_.step_deadline)));
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    world_.spawn(address(Role::gradient_bucket, bucket),
                 std::make_unique<GradientBucketMachine>(bucket_config(job_, rank, bucket)));
    world_.spawn(address(Role::parameter_shard, bucket),
                 std::make_unique<ParameterShardMachine>(shard_config(job_, rank, bucket)));
  }
}

core::Result<std::unique_ptr<gpu::Group>> Session::make_group(gpu::CollectiveBackend& backend,
                                                              std::string name,
                                                              std::vector<core::Rank> members) {
  gpu::GroupOptions options;
  options.job = world_.job();
  options.epoch = world_.epoch();
  options.name = std::move(name);
  options.members = std::move(members);
  options.self = world_.rank();
  options.deadline = options_.join_deadline;
  return backend.create_group(std::move(options));
}

core::Result<std::unique_ptr<gpu::Group>> Session::make_host_group(std::string name,
                                                                   std::vector<core::Rank> members) {
  auto* backend = TRY(world_.host_collectives(*rendezvous_));
  return make_group(*backend, std::move(name), std::move(members));
}

core::Result<void> Session::connect_groups() {
  gpu::CollectiveBackend* backend = TRY(collectives_);
  DataPlaneGroups groups;
  groups.all = TRY(make_group(*backend, "dp", job_.mesh.group(core::GroupKind::dp_cp, world_.rank())));
  if (job_.options.optimizer_instances > 1) {
    auto inner = job_.mesh.group(core::GroupKind::intra_dp_cp, world_.rank());
    auto outer = job_.mesh.group(core::GroupKind::inter_instance, world_.rank());
    int instance = world_.rank().value / job_.shards();
    int position = world_.rank().value % job_.shards();
    groups.inner = TRY(make_group(*backend, fmt::format("dp-inner-{}", instance), inner));
    groups.outer = TRY(make_group(*backend, fmt::format("dp-outer-{}", position), outer));
  }
  TRY(data_plane_->set_groups(std::move(groups)));
  TRY(connect_local_tier());
  return agree_on_tensors();
}

void Session::post(Role role, std::uint32_t index, messages::Message message) {
  world_.post(
      {{world_.rank(), Role::trainer, 0}, {world_.rank(), role, index}, world_.epoch(), std::move(message)});
}

core::Rank Session::rank() const {
  return world_.rank();
}
core::WorldSize Session::world() const {
  return world_.world();
}

std::vector<core::Lane> Session::lanes() const {
  std::vector<core::Lane> lanes;
  const auto& held = job_.lanes[static_cast<std::size_t>(world_.rank().value)];
  for (int lane = held.first; lane < held.end(); ++lane) lanes.push_back({lane});
  return lanes;
}

core::Result<void> Session::exposed(const std::function<core::Result<void>()>& wait) {
  const core::ProfiledScope range(world_.device().profiler(), kTrainer, kWaits);
  const auto watch = data_plane_->watch_compute();
  const auto begin = data_plane_->moment();
  auto result = wait();
  const auto end = data_plane_->moment();
  exposed_ += exposure(begin, end, watch.get());
  if (tracer_)
    tracer_->add(
        {core::TraceEvent::Kind::span, std::string(kTrainer), std::string(kWaits), begin.at, end.at, 0, 0});
  return result;
}

core::Result<void> Session::begin_step(double learning_rate) {
  if (auto failure = port_.failure()) return tl::unexpected(*failure);
  TRY(wait_tensors());
  adopt();
  if (auto* profiler = world_.device().profiler(); profiler && !is_profiled_) {
    profiler->begin(kTrainer, fmt::format("step {}", step_.value));
    is_profiled_ = true;
  }
  step_began_ = world_.device().now();
  exposed_ = {};
  times_before_ = data_plane_->times();
  losses_.clear();
  std::fill(last_gradient_.begin(), last_gradient_.end(), std::chrono::nanoseconds{0});
  messages::StepBegan begun{step_, learning_rate};
  post(Role::conductor, 0, begun);
  post(Role::rank_supervisor, 0, begun);
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket)
    post(Role::gradient_bucket, bucket, begun);
  return {};
}

core::Result<void> Session::begin_lane(core::Lane lane) {
  // The lane before may still be on its way into the partial sums, in a slot that this lane writes.
  if (!losses_.empty() && job_.options.numerics == core::Numerics::ordered) {
    TRY(exposed([&] { return port_.wait_merged(step_, losses_.back().lane, trainer_deadline()); }));
  }
  lane_ = lane;
  begin_microbatch(0);
  return {};
}

void Session::begin_microbatch(int index) {
  last_microbatch_ = index + 1 == job_.options.microbatches;
}

core::Result<void> Session::before_use(std::uint32_t parameter) {
  auto bucket = job_.parameters[parameter].bucket;
  if (port_.is_published(bucket, decided_)) return {};
  return exposed([&] { return port_.wait_published(bucket, decided_, trainer_deadline()); });
}

void Session::gradient_ready(std::uint32_t parameter) {
  if (!last_microbatch_) return;
  auto bucket = job_.parameters[parameter].bucket;
  last_gradient_[bucket] = world_.device().now();
  if (tracer_) {
    core::TraceEvent event;
    event.track = kTrainer;
    event.name = job_.specs[parameter].name + " gradient";
    event.begin = event.end = last_gradient_[bucket];
    event.flow = bucket_flow(step_.value, bucket);
    tracer_->add(std::move(event));
  }
  data_plane_->mark_computed(bucket);
  post(Role::gradient_bucket, bucket, messages::GradientReady{step_, lane_, parameter});
}

void Session::end_lane(double loss) {
  losses_.push_back({lane_, loss});
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    post(Role::gradient_bucket, bucket, messages::LaneEnded{step_, lane_});
  }
}

core::Result<StepOutcome> Session::finish_step(std::string refusal, std::uint32_t wishes) {
  data_plane_->mark_read();
  post(Role::rank_supervisor, 0, messages::BackwardFinished{step_, losses_, std::move(refusal), wishes});
  messages::StepDecided decided;
  TRY(exposed([&]() -> core::Result<void> {
    decided = TRY(port_.wait_decided(step_, trainer_deadline()));
    return {};
  }));
  decided_ = step_;
  if (!job_.options.overlap) TRY(exposed([&] { return publish_all(); }));
  note_latencies();
  auto now = world_.device().now();
  auto times = data_plane_->times();
  StepOutcome outcome;
  outcome.step = step_;
  outcome.committed = decided.commit;
  outcome.reason = decided.reason;
  outcome.losses = decided.verdict.losses;
  for (double loss : outcome.losses) outcome.loss += loss;
  outcome.loss /= static_cast<double>(outcome.losses.size());
  outcome.gradient_norm = decided.verdict.gradient_norm;
  outcome.clip_factor = decided.clip_factor;
  outcome.wishes = decided.verdict.wishes;
  optimizer_steps_ += decided.commit ? 1 : 0;
  outcome.times = {now - step_began_,
                   exposed_.total,
                   exposed_.communication,
                   exposed_.optimizer,
                   times.communication - times_before_.communication,
                   times.optimizer - times_before_.optimizer};
  if (tracer_) {
    tracer_->add(
        {core::TraceEvent::Kind::span, "steps", fmt::format("step {}", step_.value), step_began_, now, 0, 0});
  }
  end_profile();
  step_.value += 1;
  return outcome;
}

void Session::end_profile() {
  if (is_profiled_) world_.device().profiler()->end(kTrainer);
  is_profiled_ = false;
}

void Session::note_latencies() {
  launch_latencies_us_.clear();
  std::chrono::nanoseconds previous{};
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    auto launched = data_plane_->last_launch(bucket);
    auto ready = last_gradient_[bucket];
    if (ready.count() != 0 && launched >= ready && previous <= ready) {
      launch_latencies_us_.push_back(std::chrono::duration<double, std::micro>(launched - ready).count());
    }
    previous = launched;
  }
}

core::Result<void> Session::publish_all() {
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    TRY(port_.wait_published(bucket, decided_, trainer_deadline()));
  }
  return decided_.value < 0 ? core::Result<void>{} : port_.wait_committed(decided_, trainer_deadline());
}

core::Result<void> Session::leave() {
  TRY(publish_all());
  TRY(wait_saves());
  TRY(wait_local_saves());
  post(Role::rank_supervisor, 0, messages::Leave{world_.rank()});
  TRY(port_.wait_farewell(trainer_deadline()));
  world_.close();
  return {};
}

core::Error Session::abandon(core::Error reason) {
  post(Role::rank_supervisor, 0, messages::RankFailed{world_.rank(), messages::failure_of(reason)});
  const auto told = port_.wait_farewell(5 * kGrace);
  return told || told.error().code == core::Errc::timeout ? std::move(reason) : told.error();
}

void Session::stop_tracing() {
  if (!tracer_) return;
  tracer_->stop();
  world_.device().observe({});
}

std::vector<core::TraceEvent> Session::take_trace() {
  return tracer_ ? tracer_->take() : std::vector<core::TraceEvent>{};
}

std::string Session::waits() {
  auto waiting = port_.waiting_for();
  return fmt::format("trainer @ rank {}: {}\n", world_.rank().value,
                     waiting.empty() ? "computes" : "waits for " + waiting) +
         render(world_.wait_reports(), world_.device().now());
}

}  // namespace troupe::actors
