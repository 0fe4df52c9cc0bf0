#include "actors/session/session_parts.hpp"

#include <algorithm>
#include <utility>

#include "actors/planes/step/declared_order.hpp"
#include "actors/roles/conductor.hpp"
#include "actors/roles/coordinator.hpp"
#include "actors/session/first_values.hpp"
#include "actors/session/program_check.hpp"
#include "actors/session/remains.hpp"
#include "actors/session/rendezvous.hpp"
#include "actors/session/role_configs.hpp"
#include "actors/session/told.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// Between the Coordinator, which knows why a job does not form, and a rank, which only knows that it does
/// not.
constexpr auto kGrace = std::chrono::seconds(1);

/// Together with everything else that ranks compare they fit into one message.
constexpr std::size_t kMostSettingsBytes = std::size_t{512} << 10;

/// A line for each.
core::Result<std::string> settings_of(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    auto line = fmt::format("{} {}", name, value);
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += line + "\n";
  }
  if (text.size() <= kMostSettingsBytes) return text;
  return core::fail(
      core::Errc::invalid_argument,
      "SessionOptions::configuration takes {} bytes, at most {} are allowed; give a hash of what "
      "is large",
      text.size(), kMostSettingsBytes);
}

/// The part of a group that the rank is in.
std::vector<core::Rank> own_part(const TrainerGroupSpec& spec, core::Rank rank) {
  for (const auto& members : spec.members) {
    if (std::find(members.begin(), members.end(), rank) != members.end()) return members;
  }
  return {};  // check_groups() has found it
}

/// How often ranks tell how long they compute: rank 0 hears at most 200 of them in a second.
constexpr std::chrono::seconds kPaceInterval{2};
constexpr std::chrono::milliseconds kPaceIntervalPerRank{5};

}  // namespace

Session::Parts::Parts(RankWorld& rank_world, SessionOptions wanted, TrainingPlan planned)
    : world(rank_world),
      options(std::move(wanted)),
      own_plan(std::make_unique<TrainingPlan>(std::move(planned))),
      plan(*own_plan),
      scaler(plan.options.loss_scaling),
      inbox(static_cast<std::uint32_t>(plan.buckets.size()), world.patience()),
      pace(kPaceInterval + world.world_size().value * kPaceIntervalPerRank) {
  inbox.record_to(world.recorder());
  complete_groups(options.groups, world.world_size());
  if (!options.trace) return;
  tracer = std::make_unique<Tracer>([&device = world.device()] { return device.now(); });
  world.device().observe([to = tracer.get()](const gpu::TaskRecord& task) {
    to->add({core::TraceEvent::Kind::span, fmt::format("device {}", task.stream), std::string(task.label),
             task.begin, task.end, 0, 0});
  });
}

Session::Parts::~Parts() {
  if (tracer) world.device().observe({});
  world.close();
  if (data) data->abort({core::Errc::aborted, "the session ended"});
  leave_remains();
}

core::Result<void> Session::Parts::open() {
  if (auto described = describe_configuration(); !described)
    return tl::unexpected(give_up(std::move(described.error())));
  if (auto opened = open_experts(); !opened) return tl::unexpected(give_up(std::move(opened.error())));
  // Stages and experts differ, and so may what is wrong with their names.
  if (auto good = check_keys(plan, options.tensors); !good)
    return tl::unexpected(give_up(std::move(good.error())));
  if (auto opened = open_planes(); !opened) {
    // What a rank cannot do for want of memory others may be able to, and would wait for it.
    if (data || opened.error().code != core::Errc::out_of_memory) return opened;
    return tl::unexpected(give_up(std::move(opened.error())));
  }
  TRY(world.open(hooks()));
  spawn_roles();
  TRY(world.start());
  TRY(inbox.wait_welcome(options.join_deadline + 5 * kGrace));
  inbox.on_deadline([this](const core::Error& late) {
    return context->abandon(
        {late.code, fmt::format("rank {}: {}", world.rank().value, late.message), late.missing});
  });
  return connect();
}

/// Their state is saved as the trainer's own tensors are.
core::Result<void> Session::Parts::open_experts() {
  has_own_tensors = !options.tensors.empty();
  InlineRole::Ways ways;
  ways.post = [this](messages::Envelope envelope) { world.post(std::move(envelope)); };
  ways.perform = [this](const messages::Address& from, const Work& work) { router->perform(from, work); };
  ways.now = [this] { return world.device().now(); };
  ways.tracer = tracer.get();
  ways.witness = world.witness();
  experts = TRY(ExpertPlane::create(world.device(), plan, {world.rank(), world.epoch(), std::move(ways)}));
  if (!experts) return {};
  for (auto& tensor : experts->tensors()) options.tensors.push_back(std::move(tensor));
  layers.emplace(*experts, inbox, [this]() -> std::optional<core::Lane> {
    if (!order->is_in_step()) return {};
    return order->in_lane("route()") ? lane : core::Lane{-2};
  });
  return {};
}

core::Result<void> Session::Parts::in_time(core::Result<void> done) {
  if (done || done.error().code != core::Errc::timeout) return done;
  return tl::unexpected(inbox.fail(std::move(done.error())));
}

/// What ranks compare when they join.
core::Result<void> Session::Parts::describe_configuration() {
  TRY(options.checkpoint.load.check());
  plan.configuration = TRY(settings_of(options.configuration)) + plan.configuration;
  TRY(check_groups(trainer_groups(), world.world_size()));
  if (options.first_values == FirstValues::broadcast) plan.configuration += "\nfirst values broadcast";
  if (options.compare_replicas_every < 0)
    return core::fail(core::Errc::invalid_argument,
                      "SessionOptions::compare_replicas_every is {}; expected 0 (never) or a number of steps",
                      options.compare_replicas_every);
  plan.configuration += fmt::format("\nreplicas compared every {} steps", options.compare_replicas_every);
  plan.configuration += configuration_of(options.groups);
  plan.configuration += "\n" + options.checkpoint.load.configuration();
  if (world.local_storage() != nullptr) {
    const auto cliques = TRY(LocalTier::cliques_of(options.local, world.world_size()));
    plan.configuration += "\n" + LocalTier::configuration(cliques);
  }
  return {};
}

/// The other ranks would wait for this one: it joins the job to say why it cannot take part. Returns the
/// job's first failure, which is `reason` unless another came before it.
core::Error Session::Parts::give_up(core::Error reason) {
  if (world.world_size().value == 1) return reason;
  const auto started = [&]() -> core::Result<void> {
    TRY(world.open(hooks()));
    RankSupervisorConfig supervisor;
    supervisor.rank = world.rank();
    supervisor.world = world.world_size();
    supervisor.join_deadline = options.join_deadline + kGrace;
    supervisor.failure = messages::failure_of(reason);
    spawn_membership(std::move(supervisor));
    return world.start();
  }();
  if (!started) return reason;
  const auto refused = inbox.wait_welcome(options.join_deadline + 5 * kGrace);
  return refused || refused.error().code == core::Errc::timeout ? reason : refused.error();
}

/// Everything that this rank has for itself.
core::Result<void> Session::Parts::open_planes() {
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
  plan.inputs.ready_at_points = launches_in_order();
  if (launches_in_order()) {
    plane.launched = [this](core::Step of, core::PlanEntryIndex entry) {
      const auto& program = data->program();
      inbox.launched(place_of_launch(program.launches().size(), of, program.place_in_sequence(entry)));
    };
  }
  data = TRY(make_data(plane));
  rank_state = state_of(plan, world.rank(), options.tensors);
  memory = data->tensors().pieces_of(rank_state, options.tensors);
  context.emplace(SessionContext{world, options, plan, inbox, *rendezvous, *data, rank_state, memory});
  if (world.storage() != nullptr) checkpoints = TRY(CheckpointTier::create(*context));
  if (world.local_storage() != nullptr) local = TRY(LocalTier::create(*context));
  if (!world.device().is_host_memory()) {
    auto make = [this] {
      return group_maker().of_hosts("loads", plan.mesh.group(core::GroupKind::world, world.rank()));
    };
    hosts = std::make_unique<HostExchange>(world, std::move(make), options.step_deadline);
  }
  if (options.compare_replicas_every > 0)
    replica_check = std::make_unique<ReplicaCheck>(*context, group_maker());
  router.emplace(WorkRouter::Planes{*data, checkpoints ? &checkpoints->plane() : nullptr, local.get(),
                                    hosts.get(), experts.get(), replica_check.get()});
  meter.emplace(world.device(), *data, context->bucket_count(), tracer.get());
  saves.emplace(*context);
  gate.emplace(*context, trainer_deadline(), [this](const auto& wait) { return meter->exposed(wait); });
  sequencer.emplace(
      *context, *gate, *meter,
      Sequencer::Settings{options.step_deadline, trainer_deadline(), launches_in_order(), tracer.get()});
  values.emplace(*context);
  calls.emplace(*context);
  order.emplace(data->program().lanes(), plan.options.microbatches,
                static_cast<std::uint32_t>(plan.specs.size()), !plan.inputs.passes.empty());
  return {};
}

RankWorld::Hooks Session::Parts::hooks() {
  RankWorld::Hooks hooks;
  hooks.to_trainer = [this](const messages::Envelope& envelope) {
    say_to_people(envelope.body, world.log(Subsystem::session));
    inbox.deliver(envelope);
  };
  hooks.perform = [this](const messages::Address& from, const Work& work) {
    if (router) router->perform(from, work);
  };
  hooks.published_bits = [this](core::BucketIndex bucket) {
    const auto [range, kept] = data->tensors().kept(bucket);
    return RankWorld::PublishedBits{plan.first_alike(bucket, world.rank()), range,
                                    core::hash64({kept.data, kept.bytes})};
  };
  hooks.tracer = tracer.get();
  return hooks;
}

std::vector<WaitReport> Session::Parts::wait_reports() {
  auto all = world.wait_reports();
  if (!experts) return all;
  for (auto& report : experts->reports()) all.push_back(std::move(report));
  return all;
}

/// The roles through which ranks come together.
void Session::Parts::spawn_membership(RankSupervisorConfig supervisor) {
  const auto rank = world.rank();
  if (rank.value == 0) {
    world.spawn({rank, Role::coordinator, 0}, std::make_unique<CoordinatorMachine>(CoordinatorConfig{
                                                  world.world_size(), options.join_deadline}));
  }
  world.spawn({rank, Role::rank_supervisor, 0},
              std::make_unique<RankSupervisorMachine>(std::move(supervisor)));
}

void Session::Parts::spawn_roles() {
  const auto rank = world.rank();
  auto address = [&](Role role, std::uint32_t index = 0) { return messages::Address{rank, role, index}; };
  spawn_membership(supervisor_config(plan, data->program(), options.join_deadline + kGrace));
  if (checkpoints) checkpoints->spawn_roles();
  if (local) local->spawn_roles();
  world.spawn(address(Role::conductor), std::make_unique<ConductorMachine>(
                                            conductor_config(plan, data->program(), options.step_deadline)));
  for (const auto bucket : context->buckets()) {
    world.spawn(address(Role::parameter_shard, bucket.value),
                std::make_unique<ParameterShardMachine>(shard_config(plan, data->program(), bucket)));
    if (!plan.is_trainable(bucket)) continue;
    world.spawn(address(Role::gradient_bucket, bucket.value),
                std::make_unique<GradientBucketMachine>(bucket_config(plan, data->program(), bucket)));
  }
}

/// All ranks are there: what they run fits together, they make their groups, and agree on what they save.
core::Result<void> Session::Parts::connect() {
  gpu::CollectiveBackend* backend = TRY(collectives);
  TRY(check_programs_of_ranks(*context, programs_checked++));
  auto groups = TRY(group_maker().of_step(*backend, plan, data->program()));
  for (const auto& spec : trainer_groups()) {
    auto members = own_part(spec, world.rank());
    groups.trainers.push_back(TRY(group_maker().of_trainer(*backend, plan, spec.name, members)));
    TRY(sequencer->add(spec.name, *groups.trainers.back(), std::move(members)));
  }
  TRY(data->set_groups(std::move(groups)));
  if (layers) layers->connect(*context, *sequencer);
  if (local) TRY(local->connect(group_maker()));
  tensor_keys = TRY(agree_on_tensors(*context));
  context->enter(gpu::FlightPhase::between_steps);
  return {};
}

/// Those that were asked for, and those of the axes along which the model is cut.
std::vector<TrainerGroupSpec> Session::Parts::trainer_groups() const {
  auto groups = options.groups;
  for (const auto axis :
       {core::GroupKind::tp, core::GroupKind::cp, core::GroupKind::pp, core::GroupKind::ep}) {
    if (plan.mesh.group_size(axis) == 1) continue;
    groups.push_back({std::string(core::name_of(axis)), plan.mesh.groups(axis)});
  }
  return groups;
}

core::Result<void> Session::Parts::end_lane(std::span<const PieceLoss> pieces) {
  TRY(in_turn(gate->may_end_round()));
  TRY(in_turn(sequencer->lane_operations().may_end("end_lane()")));
  TRY(in_turn(order->end_lane()));
  sequencer->lane_operations().end();
  for (const auto& [loss, weight] : pieces) losses.push_back({lane, loss, weight});
  return gate->end_round();
}

core::Result<void> Session::Parts::in_turn(core::Result<void> called) const {
  if (called) return called;
  auto failure = inbox.failure();
  return failure ? tl::unexpected(*std::move(failure)) : called;
}

core::Result<void> Session::Parts::has_gradient(core::ParameterIndex index) const {
  TRY(order->has_parameter(index));
  const auto& spec = plan.specs[index];
  if (spec.trainable) return {};
  return core::fail(core::Errc::invalid_argument,
                    "{} is frozen and has no gradient; leave it out of backward, or register it with "
                    "ParameterSpec::trainable",
                    spec.name);
}

core::Result<void> Session::Parts::may_write_values(std::string_view call) const {
  TRY(order->between_steps(call));
  TRY(order->before_first_step(call));
  if (!saves->has_begun()) return {};
  return core::fail(core::Errc::invalid_argument,
                    "{} was called after a save of the session had begun; write first values before it",
                    call);
}

core::Result<void> Session::Parts::has_source(core::ParameterIndex index, std::optional<int> source) const {
  const int sources = data->program().sources(plan.parameters[index].bucket);
  if (source ? *source >= 0 && *source < sources : sources == 1) return {};
  return core::fail(core::Errc::invalid_argument,
                    "{} takes gradients of {} sources; say whose it is, from 0 to {}, instead of {}",
                    plan.specs[index].name, sources, sources - 1,
                    source ? std::to_string(*source) : "nothing");
}

core::Result<void> Session::Parts::check_readable(core::ParameterIndex index, core::DType dtype,
                                                  Element element) const {
  if (!world.device().is_host_memory()) {
    return core::fail(
        core::Errc::unavailable,
        "{} lies in the memory of {}, which the host does not reach; use parameter_memory() and "
        "gradient_memory() with kernels or copies on compute_stream()",
        plan.specs[index].name, world.device().description());
  }
  const bool fits = element == Element::bytes || (element == Element::f32 && dtype == core::DType::f32) ||
                    (element == Element::bits16 && core::size_of(dtype) == 2);
  if (fits) return {};
  return core::fail(core::Errc::invalid_argument, "{} has elements of {}; read them as {}, or as std::byte",
                    plan.specs[index].name, core::name_of(dtype),
                    dtype == core::DType::f32 ? "float" : "std::uint16_t");
}

std::vector<std::string> Session::Parts::alike() const {
  return {fmt::format("the learning rate given to begin_step(): {}", learning_rate),
          fmt::format("the loss scale: {}", scaler.scale())};
}

core::Result<void> Session::Parts::publish_all() {
  for (const auto bucket : context->buckets()) TRY(inbox.wait_published(bucket, decided, trainer_deadline()));
  return decided.value < 0 ? core::Result<void>{} : inbox.wait_committed(decided, trainer_deadline());
}

core::Result<void> Session::Parts::follow(const core::DeclaredOrder& units_order) {
  plan.inputs.order = {};
  TRY(take_order(plan, units_order, {}));
  if (auto fits = check_programs_of_ranks(*context, programs_checked++); !fits)
    return tl::unexpected(context->abandon(std::move(fits.error())));
  // No actor looks at the program before the step begins, of which it is told by a message after this.
  data->follow_order();
  gate->follow_order();
  const auto& program = data->program();
  const messages::OrderLearned message{program.sequence(), forward_order(plan, program)};
  context->post(Role::conductor, 0, message);
  context->post(Role::rank_supervisor, 0, message);
  return {};
}

/// The program has what a round reduces over before the next one begins, so that what it hides is what runs.
core::Result<void> Session::Parts::wait_merged(core::Lane played) {
  const auto& program = data->program();
  const bool is_ordered = plan.options.numerics == core::Numerics::ordered;
  if (!is_ordered && !program.reduces_each_round()) return {};
  return meter->exposed([&]() -> core::Result<void> {
    for (const auto bucket : context->buckets()) {
      if (plan.is_trainable(bucket)) TRY(inbox.wait_merged(bucket, step, played, trainer_deadline()));
    }
    return {};
  });
}

/// A job that restores has the same values on all ranks too, unless a rank wrote others.
core::Result<void> Session::Parts::agree_on_first_values() {
  if (has_agreed) return {};
  calls->expect(messages::Call::begin_step);
  FirstValuesOfRanks first(*context, group_maker(), first_values_compared++);
  TRY(options.first_values == FirstValues::broadcast ? first.broadcast() : first.compare());
  calls->expect_nothing();
  has_agreed = true;
  return {};
}

core::Result<void> Session::Parts::compare_replicas(messages::Call call) {
  const auto over = progress().over;
  if (!replica_check || over == compared || decided.value < 0) return {};
  TRY(publish_all());
  auto alike = calls->within(call, [&] { return in_time(replica_check->run(over)); });
  // What steps have made of gradients that came from other values is not gone on from.
  if (!alike) origin = 0;
  compared = over;
  return alike;
}

core::Result<void> Session::Parts::go_on_from(Saves::Progress from) {
  step = core::next_step(from.over);
  optimizer_steps = from.optimizer_steps;
  steps_missed = std::move(from.steps_missed);
  last = std::move(from.last);
  return from.loss_scaling ? scaler.restore(*from.loss_scaling) : core::Result<void>{};
}

/// Where there is no room for two, the memory of the epoch before goes.
core::Result<std::unique_ptr<DataPlane>> Session::Parts::make_data(const DataPlane::Options& plane) {
  auto made = DataPlane::create(world.device(), plan, plane);
  const bool lacks_room = !made && made.error().code == core::Errc::out_of_memory;
  if (!lacks_room || world.kept() == nullptr) return made;
  world.log(Subsystem::session)
      .info("this rank gives up what it has in memory from the epoch before, beside which {}",
            made.error().message);
  world.keep(nullptr);
  return DataPlane::create(world.device(), plan, plane);
}

core::Result<void> Session::Parts::let_others_join() {
  if (!is_kept_for_recovery()) {
    auto joined = saves->let_others_join(progress().over);
    ends_for_others = !joined;
    return joined;
  }
  // What was begun is of use to whoever restores.
  TRY(saves->wait());
  TRY(saves->wait_local());
  TRY(publish_all());
  ends_for_others = true;
  return core::fail(core::Errc::peer_lost,
                    "other ranks join the job after {} steps; ProcessWorld::form_anew() says how it goes on",
                    progress().over.value);
}

void Session::Parts::note_begun(const messages::StepBegan& step_begun) {
  if (begun.size() == 2) begun.erase(begun.begin());
  begun.push_back(step_begun);
  if (origin != 0) return;
  // From first values or a checkpoint, as on all ranks.
  origin = world.epoch().value;
  world.keep(nullptr);
}

void Session::Parts::leave_remains() {
  const bool goes_on = inbox.failure().has_value() || ends_for_others;
  const bool is_whole = origin != 0 && data && gate;
  if (!goes_on || !is_whole || !may_keep_state()) return;
  // Nothing but the data plane uses its streams and its memory any more.
  sequencer.reset();
  gate.reset();
  saves.reset();
  meter.reset();
  router.reset();
  hosts.reset();
  replica_check.reset();
  local.reset();
  checkpoints.reset();
  auto from = progress();
  auto remains = Remains::take(
      {std::move(own_plan), std::move(data), std::move(rank_state), origin, std::move(from), scaler, begun},
      trainer_deadline());
  if (remains) return world.keep(*std::move(remains));
  world.log(Subsystem::session)
      .info("this rank has no state in memory for the next epoch: {}", remains.error().message);
}

}  // namespace troupe::actors
