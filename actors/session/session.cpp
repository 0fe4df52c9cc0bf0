#include "actors/session/session.hpp"

#include <cmath>
#include <utility>

#include "actors/session/remains.hpp"
#include "actors/session/session_parts.hpp"
#include "actors/session/told.hpp"
#include "core/errors.hpp"
#include "core/program/memory.hpp"

namespace troupe::actors {

using messages::Role;

core::Result<std::unique_ptr<Session>> Session::join(RankWorld& world, SessionOptions options,
                                                     std::vector<core::ParameterSpec> parameters) {
  if (world.is_used()) {
    return core::fail(core::Errc::invalid_argument,
                      "this world has, or had, a session or an attempt to join; make another one");
  }
  auto plan = plan_training(std::move(parameters), options.training, world.world_size(), options.passes,
                            options.order, options.operations, world.programs());
  // Nobody waits for a rank that is alone, and its world is as before.
  if (!plan && world.world_size().value == 1) return tl::unexpected(std::move(plan.error()));
  auto parts = std::make_unique<Parts>(world, std::move(options), std::move(plan).value_or(TrainingPlan{}));
  // What is wrong may be so on this rank alone, and the others would wait for it.
  if (!plan) return tl::unexpected(parts->give_up(std::move(plan.error())));
  TRY(parts->open());
  return std::unique_ptr<Session>(new Session(std::move(parts)));
}

Session::Session(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Session::~Session() = default;

core::Rank Session::rank() const {
  return parts_->world.rank();
}

core::WorldSize Session::world_size() const {
  return parts_->world.world_size();
}

const TrainingPlan& Session::plan() const {
  return parts_->plan;
}

std::span<const core::ParameterSpec> Session::parameters() const {
  return parts_->plan.specs;
}

const core::TrainingOptions& Session::training() const {
  return parts_->plan.options;
}

std::vector<core::Lane> Session::lanes() const {
  return parts_->data->program().lanes();
}

core::Result<gpu::BufferView> Session::parameter_memory(core::ParameterIndex index) const {
  TRY(parts_->in_turn(parts_->order->has_parameter(index)));
  const auto slot = parts_->gate->slot_of(index);
  if (!slot) TRY(parts_->in_turn(tl::unexpected(slot.error())));
  return parts_->data->tensors().parameter(index, *slot);
}

std::uint32_t Session::units() const {
  return parts_->gate->units();
}

core::Result<void> Session::write_parameter(core::ParameterIndex index,
                                            const std::function<void(std::int64_t, std::span<float>)>& fill) {
  TRY(parts_->in_turn(parts_->order->has_parameter(index)));
  TRY(parts_->in_turn(parts_->may_write_values("write_parameter()")));
  return parts_->values->write(index, fill);
}

core::Result<int> Session::sources(core::ParameterIndex index) const {
  TRY(parts_->in_turn(parts_->order->has_parameter(index)));
  const auto bucket = parts_->plan.parameters[index].bucket;
  return parts_->data->program().sources(bucket);
}

core::Result<gpu::BufferView> Session::gradient_memory(core::ParameterIndex index,
                                                       std::optional<int> source) const {
  TRY(parts_->in_turn(parts_->has_gradient(index)));
  TRY(parts_->in_turn(parts_->has_source(index, source)));
  TRY(parts_->in_turn(parts_->order->in_lane("gradient()")));
  return parts_->data->tensors().gradient(index, parts_->lane, source.value_or(0));
}

core::Result<gpu::BufferView> Session::readable_parameter(core::ParameterIndex index, Element element) const {
  const auto memory = TRY(parameter_memory(index));
  TRY(parts_->check_readable(index, parts_->plan.specs[index].dtype, element));
  return memory;
}

core::Result<gpu::BufferView> Session::readable_gradient(core::ParameterIndex index,
                                                         std::optional<int> source, Element element) const {
  const auto memory = TRY(gradient_memory(index, source));
  const auto& buffer = parts_->plan.buffers[parts_->plan.parameters[index].buffer];
  TRY(parts_->check_readable(index, buffer.gradient_dtype, element));
  return memory;
}

core::Result<gpu::StreamView> Session::compute_stream() {
  const auto existing = parts_->data->marks().compute();
  if (existing != nullptr) return existing;
  TRY(parts_->in_turn(parts_->order->before_first_step("compute_stream()")));
  return parts_->data->marks().compute_stream();
}

core::Result<TrainerGroup*> Session::group(std::string_view name) {
  auto* const found = parts_->sequencer->find(name);
  if (found != nullptr) return found;
  return core::fail(core::Errc::invalid_argument, "there is no group '{}'; SessionOptions::groups has {}",
                    name, parts_->sequencer->names());
}

core::Result<ExpertLayer*> Session::experts(std::uint32_t layer) {
  if (parts_->layers) return parts_->layers->find(layer);
  return core::fail(core::Errc::invalid_argument,
                    "there is no layer {} of experts; declare it in TrainingOptions::experts", layer);
}

core::Result<void> Session::begin_step(double learning_rate) {
  auto& s = *parts_;
  if (auto failure = s.inbox.failure()) return tl::unexpected(*failure);
  TRY(s.in_turn(s.order->between_steps("begin_step()")));
  s.pace.step_begins(s.world.device().now());
  if (s.others_stand_by) TRY(s.let_others_join());
  if (!std::isfinite(learning_rate) || learning_rate < 0) {
    return core::fail(core::Errc::invalid_argument,
                      "begin_step() was given a learning rate of {}; expected a finite number that is not "
                      "negative",
                      learning_rate);
  }
  if (s.has_own_tensors) TRY(s.saves->wait_tensors());
  s.calls->made(messages::Call::begin_step);
  s.context->enter(gpu::FlightPhase::in_step, s.step);
  TRY(s.in_time(s.agree_on_first_values()));
  if (const auto every = s.options.compare_replicas_every; every > 0 && s.step.value % every == 0)
    TRY(s.compare_replicas(messages::Call::begin_step));
  TRY(s.order->begin_step());
  TRY(s.values->adopt());
  s.learning_rate = learning_rate;
  s.meter->begin_step(s.step);
  s.gate->begin_step(s.step, s.decided);
  s.losses.clear();
  const messages::StepBegan begun{s.step, learning_rate, s.scaler.scale()};
  s.note_begun(begun);
  if (s.experts) s.experts->begin_step(begun);
  s.context->post(Role::conductor, 0, begun);
  s.context->post(Role::rank_supervisor, 0, begun);
  for (const auto bucket : s.context->buckets()) {
    if (s.plan.is_trainable(bucket)) s.context->post(Role::gradient_bucket, bucket.value, begun);
  }
  // What is waited for in a step may be for a rank that did not begin it.
  s.calls->expect(messages::Call::begin_step);
  return {};
}

double Session::loss_scale() const {
  return parts_->scaler.scale();
}

core::Result<void> Session::begin_lane(core::Lane lane) {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->begin_lane(lane)));
  // The previous lane may not have joined the partial sums yet, from a slot that this lane writes.
  if (!s.losses.empty()) {
    TRY(s.wait_merged(s.losses.back().lane));
  }
  s.lane = lane;
  s.sequencer->lane_operations().begin(lane);
  return s.gate->begin_round();
}

core::Result<void> Session::begin_pass(std::size_t pass) {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->may_begin_pass()));
  const auto lane = s.gate->begin_pass(pass);
  if (!lane) return s.in_turn(tl::unexpected(lane.error()));
  s.order->pass_begun();
  s.lane = *lane;
  return {};
}

core::Result<void> Session::acquire(core::UnitIndex unit) {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->reads("acquire()")));
  return s.in_turn(s.gate->acquire(unit));
}

core::Result<void> Session::release(core::UnitIndex unit) {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->reads("release()")));
  return s.in_turn(s.gate->release(unit));
}

core::Result<void> Session::begin_backward() {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->in_lane("begin_backward()")));
  TRY(s.in_turn(s.order->by_lanes("begin_backward()")));
  return s.gate->has_units() ? s.gate->begin_backward() : core::Result<void>{};
}

core::Result<void> Session::begin_evaluation() {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->between_steps("begin_evaluation()")));
  // What is evaluated is what would be trained.
  if (s.data->updates().rounds_parameters()) TRY(s.values->adopt());
  TRY(s.publish_all());
  TRY(s.order->begin_evaluation());
  s.gate->begin_evaluation(s.decided);
  if (!s.gate->has_units()) return {};
  s.calls->made(messages::Call::begin_evaluation);
  s.context->enter(gpu::FlightPhase::evaluating);
  if (s.plan.is_data_parallel_alone()) s.calls->expect(messages::Call::begin_evaluation);
  return {};
}

core::Result<void> Session::end_evaluation() {
  TRY(parts_->in_turn(parts_->order->end_evaluation()));
  parts_->gate->end_evaluation();
  parts_->context->enter(gpu::FlightPhase::between_steps);
  parts_->calls->expect_nothing();
  return {};
}

core::Result<void> Session::begin_learning() {
  auto& s = *parts_;
  if (auto failure = s.inbox.failure()) return tl::unexpected(*failure);
  if (s.decided.value >= 0) {
    return core::fail(core::Errc::invalid_argument,
                      "begin_learning() was called after step {}; the order of units is learned before the "
                      "first step of a session",
                      s.decided.value);
  }
  TRY(s.in_turn(s.order->begin_learning()));
  s.lane = s.data->program().lanes().front();
  s.gate->begin_learning(s.decided);
  return {};
}

core::Result<core::DeclaredOrder> Session::end_learning() {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->end_learning()));
  auto learned = TRY(s.gate->end_learning());
  TRY(s.data->sums().clear_all(s.trainer_deadline()));
  if (!learned.empty()) TRY(s.follow(learned));
  return learned;
}

core::Result<void> Session::begin_microbatch(int index) {
  auto& s = *parts_;
  auto& operations = s.sequencer->lane_operations();
  if (index > 0) TRY(s.in_turn(operations.may_end("begin_microbatch()")));
  TRY(s.in_turn(s.order->begin_microbatch(index)));
  if (index > 0) operations.begin_next();
  return {};
}

core::Result<void> Session::before_use(core::ParameterIndex parameter) {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->has_parameter(parameter)));
  if (const auto unit = s.gate->unit_of(parameter); unit && s.gate->has_units()) {
    TRY(s.in_turn(s.order->reads("before_use()")));
    return s.in_turn(s.gate->acquire(*unit));
  }
  const auto bucket = s.plan.parameters[parameter].bucket;
  if (!s.inbox.is_published(bucket, s.decided)) {
    TRY(s.meter->exposed([&] { return s.inbox.wait_published(bucket, s.decided, s.trainer_deadline()); }));
  }
  s.data->marks().acquired(bucket, -1);
  return {};
}

core::Result<void> Session::gradient_ready(core::ParameterIndex parameter) {
  auto& s = *parts_;
  TRY(s.in_turn(s.has_gradient(parameter)));
  TRY(s.in_turn(s.order->in_lane("gradient_ready()")));
  TRY(s.in_turn(s.gate->may_complete_gradient(parameter)));
  if (s.order->is_learning() || !s.order->is_last_microbatch()) return {};
  const auto bucket = s.plan.parameters[parameter].bucket;
  s.meter->gradient_ready(bucket, s.plan.specs[parameter].name);
  s.data->marks().computed(parameter, s.lane);
  s.context->post_and_run(Role::gradient_bucket, bucket.value,
                          messages::GradientReady{s.step, s.lane, parameter});
  return {};
}

core::Result<void> Session::end_lane(double loss) {
  const PieceLoss whole{loss};
  return end_lane(std::span(&whole, 1));
}

core::Result<void> Session::end_lane(double loss, double weight) {
  const PieceLoss whole{loss, weight};
  return end_lane(std::span(&whole, 1));
}

core::Result<void> Session::end_lane(std::span<const PieceLoss> pieces) {
  const auto own = static_cast<std::size_t>(parts_->plan.options.own_pieces());
  if (pieces.size() != 1 && pieces.size() != own) {
    return parts_->in_turn(
        core::fail(core::Errc::invalid_argument,
                   "end_lane() was given the losses of {} pieces; this rank computes {} of a "
                   "lane: give the loss of each, or one for all",
                   pieces.size(), own));
  }
  for (const auto& [loss, weight] : pieces) {
    if (!weight || (std::isfinite(*weight) && *weight >= 0)) continue;
    return parts_->in_turn(
        core::fail(core::Errc::invalid_argument,
                   "end_lane() takes a finite weight that is not negative, for example the "
                   "number of a lane's target tokens, found {}",
                   *weight));
  }
  return parts_->end_lane(pieces);
}

core::Result<StepOutcome> Session::finish_step(std::string refusal, std::uint32_t wishes) {
  auto& s = *parts_;
  if (s.experts) TRY(s.in_turn(s.experts->may_finish()));
  TRY(s.in_turn(s.order->finish_step()));
  TRY(s.gate->pass_rest());
  s.data->marks().read();
  if (s.experts) {
    s.data->verdict().set_expert_counts(s.experts->counts());
    if (refusal.empty()) refusal = s.experts->refusal();
  }
  if (s.context->is_first_rank() && s.world.has_others_standing_by()) wishes |= kWishJoin;
  s.context->post(
      Role::rank_supervisor, 0,
      messages::BackwardFinished{
          s.step, s.plan.counts_losses(s.world.rank()) ? s.losses : std::vector<messages::LaneLoss>{},
          std::move(refusal), wishes, s.alike(), s.calls->counts()});
  messages::StepDecided decided;
  s.calls->expect(messages::Call::begin_step);
  TRY(s.meter->exposed([&]() -> core::Result<void> {
    decided = TRY(s.inbox.wait_decided(s.step, s.trainer_deadline()));
    return {};
  }));
  s.calls->expect_nothing();
  s.decided = s.step;
  s.sequencer->decided(s.step, decided.commit);
  if (s.experts) {
    TRY(s.saves->wait_tensors());  // a save may still copy what moves now
    s.experts->decided(decided, s.data->verdict().expert_counts());
  }
  if (!s.plan.options.overlap) TRY(s.meter->exposed([&] { return s.publish_all(); }));
  if (s.checkpoints) s.checkpoints->plane().prepare_for_saves();
  auto outcome = outcome_of(decided);
  if (s.context->is_first_rank())
    warn_of_norm(decided, s.plan.options.large_gradient_factor, s.world.log(Subsystem::session));
  s.others_stand_by = (outcome.wishes & kWishJoin) != 0;
  if (s.is_kept_for_recovery()) outcome.wishes &= ~std::uint32_t{kWishJoin};
  outcome.times = s.meter->end_step();
  if (auto timed = s.pace.step_over(s.world.device().now(), s.world.rank(), outcome.times,
                                    static_cast<int>(s.data->program().lanes().size())))
    s.context->tell(*timed);
  s.optimizer_steps.value += decided.commit ? 1 : 0;
  // A step refused for another reason says nothing about the scale.
  if (decided.commit || outcome.nonfinite_gradients > 0) s.scaler.update(outcome.nonfinite_gradients == 0);
  s.context->enter(gpu::FlightPhase::between_steps, s.step);
  s.step.value += 1;
  s.last = outcome;
  return outcome;
}

core::Result<std::uint64_t> Session::save(const core::Value& common,
                                          const std::vector<core::ManifestObject>& objects) {
  if (auto failure = parts_->inbox.failure()) return tl::unexpected(*failure);
  if (!parts_->checkpoints) {
    return core::fail(
        core::Errc::unavailable,
        "this job has no directory for checkpoints; give ProcessWorldOptions::checkpoint_directory");
  }
  TRY(parts_->in_turn(parts_->order->between_steps("save()")));
  TRY(parts_->values->adopt());
  TRY(parts_->calls->before(messages::Call::save,
                            [&] { return parts_->compare_replicas(messages::Call::save); }));
  const auto save = TRY(parts_->saves->begin(parts_->progress(), common, objects));
  parts_->calls->made(messages::Call::save);
  return save;
}

core::Result<std::uint64_t> Session::save_local(const core::Value& common) {
  if (auto failure = parts_->inbox.failure()) return tl::unexpected(*failure);
  if (!parts_->local) {
    return core::fail(
        core::Errc::unavailable,
        "this job has no place for local copies; give ProcessWorldOptions::local_checkpoint_directory");
  }
  TRY(parts_->in_turn(parts_->order->between_steps("save_local()")));
  TRY(parts_->values->adopt());
  TRY(parts_->calls->before(messages::Call::save_local,
                            [&] { return parts_->compare_replicas(messages::Call::save_local); }));
  const auto save = TRY(parts_->saves->begin_local(parts_->progress(), common));
  parts_->calls->made(messages::Call::save_local);
  return save;
}

std::vector<SaveResult> Session::take_saves() {
  return parts_->saves->take();
}

core::Result<void> Session::wait_saves() {
  return parts_->calls->within(messages::Call::save, [&] { return parts_->saves->wait(); });
}

std::vector<SaveResult> Session::take_local_saves() {
  return parts_->saves->take_local();
}

core::Result<void> Session::wait_local_saves() {
  return parts_->calls->within(messages::Call::save_local, [&] { return parts_->saves->wait_local(); });
}

core::Result<void> Session::publish_all() {
  return parts_->publish_all();
}

core::Result<void> Session::leave() {
  TRY(parts_->in_turn(parts_->order->between_steps("leave()")));
  TRY(publish_all());
  TRY(wait_saves());
  TRY(wait_local_saves());
  TRY(parts_->in_turn(parts_->order->leave()));
  parts_->context->post(Role::rank_supervisor, 0, messages::Leave{rank()});
  parts_->calls->made(messages::Call::leave);
  parts_->context->enter(gpu::FlightPhase::leaving);
  parts_->calls->expect(messages::Call::leave);
  TRY(parts_->in_time(parts_->inbox.wait_farewell(parts_->trainer_deadline())));
  parts_->context->enter(gpu::FlightPhase::left);
  parts_->world.close();
  return {};
}

core::Error Session::abandon(core::Error reason) {
  return parts_->context->abandon(std::move(reason));
}

void Session::stop_tracing() {
  if (!parts_->tracer) return;
  parts_->tracer->stop();
  parts_->world.device().observe({});
}

std::vector<core::TraceEvent> Session::take_trace() {
  return parts_->tracer ? parts_->tracer->take() : std::vector<core::TraceEvent>{};
}

std::string Session::waits() {
  const auto waiting = parts_->inbox.waiting_for();
  return fmt::format("trainer @ rank {}: {}\n", rank().value,
                     waiting.empty() ? "computes" : "waits for " + waiting) +
         render(parts_->wait_reports(), parts_->world.device().now());
}

std::uint64_t Session::message_count() const {
  return parts_->world.message_count();
}

const std::vector<double>& Session::launch_latencies_us() const {
  return parts_->meter->launch_latencies_us();
}

const DeviceMemory& Session::device_memory() const {
  return parts_->data->tensors().arena.taken();
}

std::size_t Session::device_bytes() const {
  return device_memory().total();
}

DeviceMemory Session::planned_memory() const {
  const auto planned = core::memory_of(parts_->data->program().program());
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  return {bytes(planned.at_rest()), bytes(planned.pools()),
          bytes(planned.staging + planned.scratch + planned.checks)};
}

core::Step Session::next_step() const {
  return parts_->step;
}

}  // namespace troupe::actors
